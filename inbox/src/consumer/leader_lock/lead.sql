-- Become the one process that consumes, if nobody is.
-- $1 lock: 64-bit hash of schema, scope, stream and durable name.
-- No index. Locking: a session-level advisory lock; it ends with the connection, so with the
-- process.
SELECT pg_try_advisory_lock($1::bigint)
