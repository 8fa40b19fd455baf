-- Forget how often a key's messages were tried, and that they were snoozed: the key is given up.
-- $1 scope; $2 tenant; $3 key.
-- Index: inbox_attempt_pkey, inbox_snooze_pkey, by their first columns.
-- Locking: the key's rows, until the transaction ends, which is about to commit.
WITH snoozes AS (
  DELETE FROM {schema}.inbox_snooze
  WHERE scope = $1::text
    AND tenant = $2::text
    AND key = $3::text
)
DELETE FROM {schema}.inbox_attempt
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
