-- Begin an effect: renew the lease, and record that the effect may happen from now on, unless it is
-- recorded already.
-- $1 scope; $2 tenant; $3 key; $4 owner; $5 epoch; $6 lease in milliseconds; $7 step.
-- Index: inbox_claim_pkey, inbox_effect_pkey.
-- Locking: the claim's row; only its owner writes effects, so what is read of them is current. No
-- row: the lease is lost.
WITH held AS (
  UPDATE {schema}.inbox_claim
  SET lease_until = clock_timestamp() + $6::bigint * interval '1 millisecond'
  WHERE scope = $1::text
    AND tenant = $2::text
    AND key = $3::text
    AND owner = $4::uuid
    AND epoch = $5::bigint
    AND state = 'running'
  RETURNING scope, tenant, key, epoch
), begun AS (
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
       (extract(epoch FROM clock_timestamp() - e.started_at) * 1000)::bigint AS age_milliseconds
FROM held
LEFT JOIN {schema}.inbox_effect AS e
  ON e.scope = $1::text AND e.tenant = $2::text AND e.key = $3::text AND e.step = $7::text
