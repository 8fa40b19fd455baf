-- Read what is stored for keys that could not be claimed.
-- $1 scope; then arrays of one length: $2 tenants; $3 keys; besides $4 retention in seconds, or
-- NULL for ever.
-- Index: inbox_pkey, once for each key.
-- Locking: none. A key without a row is in flight, and a dead one is looked at again, see
-- `../stored.sql`.
SELECT stored.tenant,
       stored.key,
       stored.status,
       stored.fingerprint,
       stored.outcome,
       stored.message_id,
       coalesce(
         stored.created_at < statement_timestamp() - make_interval(secs => $4::double precision),
         false
       ) AS is_expired
FROM unnest($2::text[], $3::text[]) AS wanted (tenant, key)
JOIN {schema}.inbox AS stored
  ON stored.scope = $1::text
 AND stored.tenant = wanted.tenant
 AND stored.key = wanted.key
