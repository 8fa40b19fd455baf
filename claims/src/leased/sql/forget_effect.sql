-- Forget an effect that is known not to have happened.
-- $1 scope; $2 tenant; $3 key; $4 owner; $5 epoch; $6 lease in milliseconds; $7 step.
-- Index: inbox_claim_pkey, inbox_effect_pkey.
-- Locking: the claim's row. No row: the lease is lost, or the effect was forgotten before its
-- answer was lost.
WITH held AS (
  UPDATE {schema}.inbox_claim
  SET lease_until = clock_timestamp() + $6::bigint * interval '1 millisecond'
  WHERE scope = $1::text
    AND tenant = $2::text
    AND key = $3::text
    AND owner = $4::uuid
    AND epoch = $5::bigint
    AND state = 'running'
  RETURNING scope, tenant, key
)
DELETE FROM {schema}.inbox_effect AS e
USING held
WHERE e.scope = $1::text
  AND e.tenant = $2::text
  AND e.key = $3::text
  AND e.step = $7::text
  AND e.state = 'started'
