-- Begin an effect again that is known not to have happened: record when it was begun, by whom.
-- Continues `held.sql`.
-- $1 to $6: see `held.sql`; $7 step.
-- Index: inbox_effect_pkey.
-- Locking: the effect's row. No row: the lease is lost.
UPDATE {schema}.inbox_effect AS e
SET started_at = clock_timestamp(),
    epoch = held.epoch
FROM held
WHERE e.scope = $1::text
  AND e.tenant = $2::text
  AND e.key = $3::text
  AND e.step = $7::text
  AND e.state = 'started'
