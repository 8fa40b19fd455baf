-- Renew a lease; also before the writes of an owner are committed, so that nobody can have taken
-- over by then.
-- $1 scope; $2 tenant; $3 key; $4 owner; $5 epoch; $6 lease in milliseconds.
-- Index: inbox_claim_pkey.
-- Locking: the claim's row, until the transaction ends. No row: the lease is lost.
UPDATE {schema}.inbox_claim
SET lease_until = clock_timestamp() + $6::bigint * interval '1 millisecond'
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
  AND owner = $4::uuid
  AND epoch = $5::bigint
  AND state = 'running'
