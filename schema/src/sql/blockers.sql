-- Who may be in a migration's way: sessions and prepared transactions that hold a lock on a table
-- of ours, or else have a transaction open in this database, oldest first. No text of a query: it
-- may hold secrets. Ages are NULL for a user who may not see them. Index: none; system views.
-- Locking: none.
SELECT b.who, b.seconds
FROM (
  SELECT
    concat_ws(' ', 'session', a.pid, '"' || nullif(a.application_name, '') || '"', 'of', coalesce(a.usename, a.backend_type)) AS who,
    extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
    l.pid IS NOT NULL AS holds
  FROM pg_stat_activity AS a
  LEFT JOIN (
    SELECT DISTINCT h.pid
    FROM pg_locks AS h
    JOIN pg_class AS c ON c.oid = h.relation
    WHERE h.granted AND c.relnamespace = to_regnamespace('{name}')
      AND h.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
  ) AS l ON l.pid = a.pid
  WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND (l.pid IS NOT NULL OR a.xact_start IS NOT NULL)
  UNION ALL
  SELECT
    format('prepared transaction "%s" of %s', p.gid, p.owner),
    extract(epoch FROM clock_timestamp() - p.prepared)::float8,
    true
  FROM pg_prepared_xacts AS p
  WHERE p.database = current_database()
) AS b
ORDER BY b.holds DESC, b.seconds DESC NULLS LAST
LIMIT 3
