-- Sessions that have the lock of a key at this moment: their handlers are at work on it, each in
-- its own transaction.
-- $1, $2: the keys, each with a tenant; $3: inboxes at most; $4: rows at most.
-- Index: inbox_scope_pkey; pg_locks has a row for each lock. Locking: none.
WITH scoped AS MATERIALIZED (
  SELECT s.scope
  FROM {schema}.inbox_scope AS s
  WHERE s.kind = 'consumer'
  ORDER BY s.scope
  LIMIT $3
),
claimed AS MATERIALIZED (
  SELECT s.scope, k.key, {schema}.inbox_lock(s.scope, k.tenant, k.key) AS lock
  FROM scoped AS s
  CROSS JOIN unnest($1::text[], $2::text[]) AS k (key, tenant)
)
SELECT
  c.key,
  c.scope,
  l.pid,
  a.application_name,
  extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
FROM claimed AS c
JOIN pg_locks AS l
  ON l.locktype = 'advisory'
    AND l.granted
    AND l.objsubid = 1
    AND (l.classid::bigint << 32) | l.objid::bigint = c.lock
JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
ORDER BY c.key, c.scope
LIMIT $4
