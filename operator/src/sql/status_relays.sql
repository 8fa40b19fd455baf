-- Relays at work: sessions with their name, grouped by the details that this role may see of them.
-- The leader holds the lock of lead.sql.
-- $1: the name; $2: groups at most. Index: none: a row per session and lock. Locking: none.
WITH leaders AS MATERIALIZED (
  SELECT k.pid
  FROM pg_locks AS k
  WHERE k.locktype = 'advisory'
    AND k.granted
    AND k.objsubid = 1
    AND (k.classid::bigint << 32) | k.objid::bigint = hashtextextended('oncebox leader: {name}', 0)
)
SELECT
  a.usename::text AS user_name,
  host(a.client_addr) AS client,
  count(*) AS sessions,
  bool_or(a.pid IN (SELECT l.pid FROM leaders AS l)) AS leads
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.application_name = $1
GROUP BY a.usename, a.client_addr
ORDER BY count(*) DESC, a.usename, a.client_addr
LIMIT $2
