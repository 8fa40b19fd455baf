-- Store how handlers ended, where it is more than "completed" without a reply.
-- $1 scope; then arrays of one length: $2 tenants; $3 keys; $4 statuses; $5 outcomes or NULL.
-- Index: inbox_pkey, once for each key; then the row by its place. OFFSET 0 keeps a planner that
-- knows nothing of the table yet from reading all keys of the scope instead.
-- Locking: the rows were inserted by this transaction, no other sees them.
UPDATE {schema}.inbox AS claimed
SET status = settled.status,
    outcome = settled.outcome
FROM unnest($2::text[], $3::text[], $4::text[], $5::bytea[]) AS settled (tenant, key, status, outcome)
CROSS JOIN LATERAL (
  SELECT r.ctid
  FROM {schema}.inbox AS r
  WHERE r.scope = $1::text
    AND r.tenant = settled.tenant
    AND r.key = settled.key
  OFFSET 0
) AS found
WHERE claimed.ctid = found.ctid
