-- How keys stand in the inboxes of this database.
-- $1: the keys; $2: inboxes (of each scope and tenant one) to look at, at most; $3: rows at most;
-- $4: a key, NULL = none: dead ones below it too, whose messages may be from elsewhere. A key is
-- edited where an edit came in its place: see the migration 0027_edit.sql.
-- Index: inbox_pkey, from one scope and tenant to the next, then each key in each, and the range
-- below $4; then inbox_scope_pkey. Locking: none.
SELECT
  f.key::text AS key,
  f.scope::text AS scope,
  f.tenant::text AS tenant,
  CASE WHEN f.status = 'dead' AND f.fingerprint = '' THEN 'edited' ELSE f.status END AS status,
  f.created_at,
  coalesce(s.kind = 'http', false) AS is_request,
  CASE WHEN s.kind = 'http' THEN (SELECT r.status FROM {schema}.decode_response(f.outcome) AS r) END AS http_status
FROM (
  SELECT f.*
  FROM {schema}.inbox_places($2::integer) AS h
  CROSS JOIN unnest($1::text[]) AS k (key)
  CROSS JOIN LATERAL (
    SELECT i.key, i.scope, i.tenant, i.status, i.created_at, i.fingerprint, i.outcome
    FROM {schema}.inbox AS i
    WHERE i.scope = h.scope AND i.tenant = h.tenant AND i.key = k.key
    OFFSET 0
  ) AS f
  UNION ALL
  SELECT f.*
  FROM {schema}.inbox_places($2::integer) AS h
  CROSS JOIN LATERAL (
    SELECT i.key, i.scope, i.tenant, i.status, i.created_at, i.fingerprint, i.outcome
    FROM {schema}.inbox AS i
    WHERE i.scope = h.scope
      AND i.tenant = h.tenant
      AND i.key > $4::text || ':'
      AND i.key < $4::text || ';'
      AND i.key <> ALL ($1::text[])
      AND i.status = 'dead'
    ORDER BY i.key
    LIMIT $3
  ) AS f
) AS f
LEFT JOIN {schema}.inbox_scope AS s ON s.scope = f.scope
ORDER BY f.key, f.scope, f.tenant
LIMIT $3
