-- Claim keys, as `claim.sql` does a single one; tells which were won.
-- $1 scope; then arrays of one length: $2 locks, 64-bit hashes as in `claim.sql`; $3 tenants; $4
-- keys; $5 fingerprints; $6 ids of the messages or NULL. No key twice; sorted by tenant and key.
-- Index: inbox_pkey. Locking: see the function, in `schema/migrations/0015_batches.sql`.
SELECT tenant, key
FROM {schema}.claim_keys($1::text, $2::bigint[], $3::text[], $4::text[], $5::bytea[], $6::bigint[])
