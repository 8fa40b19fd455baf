-- Forget an effect that is known not to have happened. Continues `held.sql`.
-- $1 to $6: see `held.sql`; $7 step.
-- Index: inbox_effect_pkey.
-- Locking: the effect's row. No row: the lease is lost, or the effect was forgotten before its
-- answer was lost.
DELETE FROM {schema}.inbox_effect AS e
USING held
WHERE e.scope = $1::text
  AND e.tenant = $2::text
  AND e.key = $3::text
  AND e.step = $7::text
  AND e.state = 'started'
