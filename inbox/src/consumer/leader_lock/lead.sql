-- Become the one process that consumes, if there is none, until this transaction ends. Asked again
-- in the same transaction until it is true.
-- $1 scope; $2 stream; $3 durable name; $4 silence after which PostgreSQL ends the session, in
-- seconds.
-- No index. Locking: an advisory lock; it ends with the transaction, so with the process, or with
-- its silence.
SELECT {schema}.lead_consumer($1::text, $2::text, $3::text, make_interval(secs => $4::bigint))::text
