-- Read the rows of keys that could not be claimed.
-- $1 scope; then arrays of one length: $2 tenants; $3 keys; besides $4 retention in seconds, or
-- NULL for ever.
-- Index: inbox_pkey, once for each key, as in `settle.sql`.
-- Locking: none. A key without a row is in flight, and a dead one is looked at again, see
-- `../stored.sql`.
SELECT stored.*
FROM unnest($2::text[], $3::text[]) AS wanted (tenant, key)
CROSS JOIN LATERAL (
  SELECT r.tenant,
         r.key,
         r.status,
         r.fingerprint,
         r.outcome,
         r.message_id,
         coalesce(
           r.created_at < statement_timestamp() - make_interval(secs => $4::double precision),
           false
         ) AS is_expired
  FROM {schema}.inbox AS r
  WHERE r.scope = $1::text
    AND r.tenant = wanted.tenant
    AND r.key = wanted.key
  OFFSET 0
) AS stored
