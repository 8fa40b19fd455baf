-- Forget how often a key's messages were tried, if the key has ended. This follows the commit in a
-- statement of its own: the handler may have left its transaction to a role without rights here.
-- $1 scope; $2 tenant; $3 key.
-- Index: inbox_attempt_pkey, by its first columns; inbox_pkey.
-- Locking: the key's rows, until the transaction ends, which has only statements like this one. No
-- run counts attempts at a key that has ended.
DELETE FROM {schema}.inbox_attempt AS a
WHERE a.scope = $1::text
  AND a.tenant = $2::text
  AND a.key = $3::text
  AND EXISTS (
    SELECT
    FROM {schema}.inbox AS i
    WHERE i.scope = a.scope
      AND i.tenant = a.tenant
      AND i.key = a.key)
