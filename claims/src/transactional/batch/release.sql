-- Give back the keys of messages that had no effect: a key that stayed claimed would count as
-- handled.
-- $1 scope; then arrays of one length: $2 tenants; $3 keys.
-- Index: inbox_pkey, once for each key, as in `settle.sql`.
-- Locking: the rows were inserted by this transaction, no other sees them; their advisory locks
-- last until it ends.
DELETE FROM {schema}.inbox AS claimed
USING unnest($2::text[], $3::text[]) AS released (tenant, key)
CROSS JOIN LATERAL (
  SELECT r.ctid
  FROM {schema}.inbox AS r
  WHERE r.scope = $1::text
    AND r.tenant = released.tenant
    AND r.key = released.key
  OFFSET 0
) AS found
WHERE claimed.ctid = found.ctid
