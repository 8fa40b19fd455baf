-- Remember how an effect ended; the same again when the answer was lost.
-- $1 scope; $2 tenant; $3 key; $4 owner; $5 epoch; $6 lease in milliseconds; $7 step; $8 state; $9
-- result.
-- Index: inbox_claim_pkey, inbox_effect_pkey.
-- Locking: the claim's row. No row: the lease is lost.
WITH held AS (
  UPDATE {schema}.inbox_claim
  SET lease_until = clock_timestamp() + $6::bigint * interval '1 millisecond'
  WHERE scope = $1::text
    AND tenant = $2::text
    AND key = $3::text
    AND owner = $4::uuid
    AND epoch = $5::bigint
    AND state = 'running'
  RETURNING epoch
)
INSERT INTO {schema}.inbox_effect AS e (scope, tenant, key, step, state, result, epoch)
SELECT $1::text, $2::text, $3::text, $7::text, $8::text, $9::bytea, held.epoch
FROM held
ON CONFLICT ON CONSTRAINT inbox_effect_pkey DO UPDATE
SET state = excluded.state,
    result = excluded.result,
    epoch = excluded.epoch
