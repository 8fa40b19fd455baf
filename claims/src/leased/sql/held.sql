-- The lease fence: every statement that writes for a claim renews its lease in the same statement,
-- and writes nothing when the lease is lost. This is the beginning of `renew.sql`,
-- `begin_effect.sql`, `begin_again.sql`, `settle_effect.sql` and `forget_effect.sql`. `open.sql`
-- and `release.sql` do something else to the row, and repeat the condition; a test holds that all
-- agree. The function end_leased(), which `end.sql` calls, repeats it too.
-- $1 scope; $2 tenant; $3 key; $4 owner; $5 epoch; $6 lease in milliseconds.
-- Index: inbox_claim_pkey.
-- Locking: the claim's row, until the transaction ends, so no other process can take it over
-- meanwhile.
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
)
