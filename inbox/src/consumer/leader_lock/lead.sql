-- Become the one process that consumes, if nobody is, until this transaction ends. It stays open
-- and idle, without a limit of time; at READ COMMITTED it holds back no vacuum meanwhile. Asked
-- again in the same transaction until it is true.
-- $1 lock: 64-bit hash of schema, scope, stream and durable name.
-- No index. Locking: an advisory lock; it ends with the transaction, so with the process.
SELECT pg_try_advisory_xact_lock($1::bigint)::text,
       (SELECT count(set_config(s.name, '0', true))
        FROM pg_settings AS s
        WHERE s.name IN ('idle_in_transaction_session_timeout', 'transaction_timeout'))::text
