-- The inboxes of this database, each of a consumer's scope and a tenant, and how long they keep
-- keys.
-- $1: inboxes at most. Index: inbox_pkey, from one scope and tenant to the next. Locking: none.
WITH RECURSIVE found AS (
  (
    SELECT i.scope, i.tenant, 1 AS place
    FROM {schema}.inbox AS i
    ORDER BY i.scope, i.tenant
    LIMIT 1
  )
  UNION ALL
  SELECT next.scope, next.tenant, f.place + 1
  FROM found AS f
  CROSS JOIN LATERAL (
    SELECT i.scope, i.tenant
    FROM {schema}.inbox AS i
    WHERE (i.scope, i.tenant) > (f.scope, f.tenant)
    ORDER BY i.scope, i.tenant
    LIMIT 1
  ) AS next
  WHERE f.place < $1
)
SELECT f.scope::text AS scope, f.tenant::text AS tenant, s.retention_seconds
FROM found AS f
JOIN {schema}.inbox_scope AS s ON s.scope = f.scope AND s.kind = 'consumer'
ORDER BY f.scope, f.tenant
