-- Open a batch: its guard, and the limits that hold for its transaction.
-- $1 how long the whole may take; $2 statement_timeout or NULL; $3 lock_timeout or NULL; each as
-- PostgreSQL writes intervals. The guard is a row with a deferred foreign key that nothing fulfils:
-- until `close.sql` deletes it, no COMMIT succeeds. All keys of a batch are claimed before its
-- handlers run, so a handler that committed by itself would otherwise have committed claims of
-- messages that no handler has run. Since version 17 PostgreSQL has one limit for the whole
-- transaction; older versions have one for idle time and one for each statement.
-- Returns the process and the transaction, for `end.sql`.
-- Index: inbox_batch_pkey. Locking: none; the row has this transaction's own id.
WITH opened AS (
  INSERT INTO {schema}.inbox_batch DEFAULT VALUES
)
SELECT
  pg_backend_pid(),
  pg_current_xact_id()::text,
  CASE
    WHEN current_setting('server_version_num')::integer >= 170000
    THEN set_config('transaction_timeout', $1::text, true)
    ELSE set_config('idle_in_transaction_session_timeout', $1::text, true)
  END,
  CASE
    WHEN $2::text IS NOT NULL THEN set_config('statement_timeout', $2::text, true)
    WHEN current_setting('server_version_num')::integer < 170000
    THEN set_config('statement_timeout', $1::text, true)
  END,
  CASE WHEN $3::text IS NOT NULL THEN set_config('lock_timeout', $3::text, true) END
