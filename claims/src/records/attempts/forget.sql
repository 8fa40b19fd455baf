-- Forget how often a key's messages were tried: it is given up.
-- $1 scope; $2 tenant; $3 key.
-- Index: inbox_attempt_pkey, by its first columns.
-- Locking: the key's rows, until the transaction ends, which is about to commit.
DELETE FROM {schema}.inbox_attempt
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
