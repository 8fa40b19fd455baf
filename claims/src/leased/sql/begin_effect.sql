-- Begin an effect: record that it may happen from now on, unless it is recorded already. Continues
-- `held.sql`.
-- $1 to $6: see `held.sql`; $7 step.
-- Index: inbox_effect_pkey.
-- Locking: only the claim's owner writes effects, so this statement reads their latest state. No
-- row: the lease is lost.
, begun AS (
  INSERT INTO {schema}.inbox_effect (scope, tenant, key, step, epoch)
  SELECT scope, tenant, key, $7::text, epoch
  FROM held
  ON CONFLICT ON CONSTRAINT inbox_effect_pkey DO NOTHING
  RETURNING step
)
SELECT EXISTS (SELECT FROM begun) AS is_begun,
       e.state,
       e.result,
       e.epoch = held.epoch AS is_own,
       (1000 * least(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM e.started_at), -1e12), 1e12))::bigint AS age_milliseconds
FROM held
LEFT JOIN {schema}.inbox_effect AS e
  ON e.scope = $1::text AND e.tenant = $2::text AND e.key = $3::text AND e.step = $7::text
