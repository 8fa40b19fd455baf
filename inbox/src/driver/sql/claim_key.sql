-- Claim a key that `claim.sql` of oncebox-claims did not win, or that is probably known, in the
-- transaction that the handler writes through; and set PostgreSQL's limits.
-- $1 scope; $2 key; $3 payload; $4 tenant; $5 the outbox's row or NULL; $6 limit of a transaction
-- in which nothing happens; $7 limit of a statement.
-- Index: inbox_pkey, inside the function. Locking: the key's advisory lock, not waited for.
SELECT c.answer,
       c.outcome::text,
       c.reason,
       pg_current_xact_id_if_assigned()::text,
       set_config('idle_in_transaction_session_timeout', $6::text, true),
       set_config('statement_timeout', $7::text, true)
FROM {schema}.claim($1::text, $2::text, $3::bytea, $4::text, $5::bigint) AS c
