-- Claim keys, as `claim.sql` does a single one; tells which were won.
-- $1 scope; then arrays of one length: $2 locks, 64-bit hashes as in `claim.sql`; $3 tenants; $4
-- keys; $5 fingerprints;
-- $6 ids of the messages or NULL. No key twice; sorted by tenant and key.
-- Index: inbox_pkey.
-- Locking: the advisory locks are tried, never waited for, and only the holder of a lock inserts
-- its key: so a claim waits for no other, and two batches with the same keys cannot block each
-- other, in any order of the keys. The order matters for the pages of the index only. A row's lock
-- is tried right before the row is inserted, not before all of them: the insertion sees every row
-- that an earlier holder of its lock committed.
INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status)
SELECT $1::text, wanted.tenant, wanted.key, wanted.fingerprint, wanted.message_id, 'completed'
FROM unnest($2::bigint[], $3::text[], $4::text[], $5::bytea[], $6::bigint[])
  AS wanted (lock, tenant, key, fingerprint, message_id)
WHERE pg_try_advisory_xact_lock(wanted.lock)
ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING
RETURNING tenant, key
