-- Release a claim that did not end: every process may claim the key after the pause.
-- $1 scope; $2 tenant; $3 key; $4 owner; $5 epoch; $6 pause in milliseconds; $7 state; $8 reason;
-- $9 1 if it was an attempt, 0 if not.
-- Index: inbox_claim_pkey.
-- Locking: the claim's row. No row: the lease is lost.
UPDATE {schema}.inbox_claim
SET state = $7::text,
    reason = $8::text,
    attempts = attempts - 1 + $9::integer,
    lease_until = clock_timestamp() + $6::bigint * interval '1 millisecond'
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
  AND owner = $4::uuid
  AND epoch = $5::bigint
  AND state = 'running'
