-- End the session that holds a key's lock, because a statement of its handler goes on; the lock
-- goes with it.
-- $1 lock: 64-bit hash as in `claim.sql`; $2 for how many milliseconds the lock has been held at
-- least. The lock may have come free by itself, and be another's by now: his transaction is younger
-- than that. Should it be ended all the same, it is rolled back, and its message runs again.
-- Index: none; a view of as many rows as there are locks. Locking: none. A role may end its own
-- sessions.
SELECT pg_terminate_backend(held.pid, 1000)::text
FROM pg_locks AS held
JOIN pg_stat_activity AS holder ON holder.pid = held.pid
WHERE held.locktype = 'advisory'
  AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND held.objsubid = 1
  AND (held.classid::bigint << 32) | held.objid::bigint = $1::bigint
  AND held.granted
  AND holder.xact_start <= clock_timestamp() - $2::bigint * interval '1 millisecond'
