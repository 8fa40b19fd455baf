-- Relays at work: sessions with their name, grouped by what this role may see of them.
-- $1: the name; $2: groups at most. Index: none: a row per session. Locking: none.
SELECT
  a.usename::text AS user_name,
  host(a.client_addr) AS client,
  count(*) AS sessions
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.application_name = $1
GROUP BY a.usename, a.client_addr
ORDER BY count(*) DESC, a.usename, a.client_addr
LIMIT $2
