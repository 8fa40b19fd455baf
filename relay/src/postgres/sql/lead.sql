-- Try to be the leader, and look at the log: see look.sql.
-- Index: none. Locking: an advisory lock of the session. It ends with the connection, so with the
-- process, and has no meaning but this one: two relays that both believe to be the leader share the
-- lanes. Not asked for with a transaction pooler, whose sessions belong to others.
SELECT
  pg_try_advisory_lock(hashtextextended('oncebox leader: {name}', 0)) AS is_own,
  pg_current_snapshot() AS snapshot
