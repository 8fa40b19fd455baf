-- End the sessions that hold lanes for a client that reads no more: a relay that is suspended while
-- PostgreSQL sends it an answer. Neither the idle timeout nor the statement timeout ends these, and
-- tcp_user_timeout knows no Unix sockets. Of other roles only those whose rights this one has.
-- $1: seconds that a statement has taken. A relay that works has an answer in a few milliseconds,
-- and ending it loses nothing: messages that it had not settled are sent again.
-- Index: none; pg_stat_activity has a row per session. pg_locks is read for a session that is
-- suspected only (OFFSET 0). Locking: none.
SELECT
  a.pid,
  extract(epoch FROM clock_timestamp() - a.query_start)::float8 AS seconds,
  pg_terminate_backend(a.pid) AS ended
FROM (
  SELECT s.pid, s.query_start
  FROM pg_stat_activity AS s
  WHERE s.datname = current_database()
    AND s.wait_event = 'ClientWrite'
    AND s.query_start < clock_timestamp() - make_interval(secs => $1)
    AND pg_has_role(s.usesysid, 'USAGE')
  OFFSET 0
) AS a
WHERE EXISTS (
  SELECT
  FROM pg_locks AS k
  WHERE k.pid = a.pid AND k.relation = '{schema}.lane'::regclass AND k.mode = 'RowShareLock'
)
