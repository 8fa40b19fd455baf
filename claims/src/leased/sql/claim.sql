-- Claim a key, or take over a claim whose lease, or pause after a failure, has ended; no row when
-- neither is possible.
-- $1 scope; $2 tenant; $3 key; $4 fingerprint; $5 id of the message or NULL; $6 owner; $7 lease in
-- milliseconds.
-- Index: inbox_claim_pkey.
-- Locking: of two takers the second waits for the first's row, then reads the new lease and updates
-- nothing; a process that hangs with the row locked is not waited for, its claim is in flight. The
-- row is inserted again when a claim ended a moment ago, after the caller looked: therefore it
-- looks again, with `found.sql`, before it commits. While the row is ours no other transaction can
-- end the key.
INSERT INTO {schema}.inbox_claim AS c (scope, tenant, key, fingerprint, message_id, owner, lease_until)
SELECT $1::text, $2::text, $3::text, $4::bytea, $5::bigint, $6::uuid,
       clock_timestamp() + $7::bigint * interval '1 millisecond'
WHERE set_config('lock_timeout', '1000ms', true) IS NOT NULL
ON CONFLICT ON CONSTRAINT inbox_claim_pkey DO UPDATE
SET owner = excluded.owner,
    epoch = c.epoch + 1,
    state = 'running',
    lease_until = clock_timestamp() + $7::bigint * interval '1 millisecond',
    attempts = c.attempts + 1,
    taken_over = c.state = 'running',
    reason = NULL
WHERE c.lease_until <= clock_timestamp()
  AND c.fingerprint = excluded.fingerprint
RETURNING epoch, attempts, taken_over
