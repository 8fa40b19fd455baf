-- Give back the keys of messages that had no effect: a key that stayed claimed would count as
-- handled.
-- $1 scope; then arrays of one length: $2 tenants; $3 keys.
-- Index: inbox_pkey, once for each key.
-- Locking: the rows were inserted by this transaction, nobody else sees them; their advisory locks
-- last until it ends.
DELETE FROM {schema}.inbox AS claimed
USING unnest($2::text[], $3::text[]) AS released (tenant, key)
WHERE claimed.scope = $1::text
  AND claimed.tenant = released.tenant
  AND claimed.key = released.key
