-- Read the result of a step that is done.
-- $1 scope; $2 tenant; $3 key; $4 step.
-- Index: inbox_effect_pkey.
-- Locking: none; only the claim's owner writes effects, and it is checked before the transaction
-- commits.
SELECT result
FROM {schema}.inbox_effect
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
  AND step = $4::text
  AND state = 'done'
