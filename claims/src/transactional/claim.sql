-- Claim a key: the row is inserted when no transaction works on the key and no row of it is
-- committed. $1 lock: 64-bit hash of schema, scope, tenant and key; $2 scope; $3 tenant; $4 key; $5
-- fingerprint;
-- $6 id of the message or NULL; $7 status; $8 outcome or NULL. {..._timeout}: milliseconds.
-- Returns the transaction's id, by which `committed.sql` knows the row of a handler that sent
-- COMMIT by itself.
-- Index: inbox_pkey.
-- Locking: only the holder of the advisory lock inserts the key, and it keeps the lock until its
-- transaction ends, so no transaction waits on the index for an uncommitted row; a duplicate gets 0
-- rows at once. The WHERE clause runs before the insertion, so the insertion sees every row
-- committed under an earlier holder of the lock. Only in a transaction that the inbox began: a
-- claim is sent after a commit without waiting for its answer, and if that commit failed, the claim
-- would otherwise commit by itself. The mark is DEFERRABLE, which COMMIT AND CHAIN hands on and
-- which means nothing to a transaction that writes; a statement outside a transaction block always
-- has the default. Above READ COMMITTED a row that was committed after the snapshot is an error,
-- 40001, and the claim is repeated in another transaction. {on_conflict} does nothing, or is left
-- out for a key that is probably new, which makes the whole message a tenth cheaper: a known key
-- then violates inbox_pkey, the transaction is aborted, and the claim is repeated with the other
-- form. The timeouts hold for the rest of the transaction; they are set here to save a round trip.
-- Each costs every message some microseconds, so the line of one that is not needed is left out,
-- see `timeouts.rs`.
INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status, outcome)
SELECT $2::text, $3::text, $4::text, $5::bytea, $6::bigint, $7::text, $8::bytea
WHERE current_setting('transaction_deferrable') <> current_setting('default_transaction_deferrable')
  AND pg_try_advisory_xact_lock($1::bigint)
  AND set_config('transaction_timeout', '{transaction_timeout}ms', true) IS NOT NULL
  AND set_config('idle_in_transaction_session_timeout', '{idle_timeout}ms', true) IS NOT NULL
  AND set_config('statement_timeout', '{statement_timeout}ms', true) IS NOT NULL
  AND set_config('lock_timeout', '{lock_timeout}ms', true) IS NOT NULL
{on_conflict}
RETURNING pg_current_xact_id()::text
