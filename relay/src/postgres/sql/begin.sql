-- Open the claiming transaction. Everything here ends with the transaction, so that a transaction
-- pooler works. A relay that hangs is cut off by the idle timeout. A limit that the role or the
-- database has for transactions (PostgreSQL 17) does not hold: a pass that waits for a slow NATS
-- would be undone, and made again for ever. The planner settings hold whatever the statistics say:
-- a log that grew by a million rows a second ago must still be read by its indexes, and no
-- statement is planned twice, since planning was more than half of a pass. No commit waits for the
-- disk: what a crash of PostgreSQL takes back, of the last moments, is sent again under the same
-- ids. Row security is off, so that a policy which would hide rows from the relay is an error
-- instead of messages that are never delivered. Returns the backend: postgres/pooler.rs.
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT
  pg_backend_pid(),
  set_config('statement_timeout', '30s', true),
  set_config('lock_timeout', '10s', true),
  set_config('idle_in_transaction_session_timeout', '60s', true),
  CASE
    WHEN current_setting('server_version_num')::integer >= 170000
      THEN set_config('transaction_timeout', '0', true)
  END,
  set_config('row_security', 'off', true),
  set_config('synchronous_commit', 'off', true),
  set_config('plan_cache_mode', 'force_generic_plan', true),
  set_config('enable_seqscan', 'off', true),
  set_config('enable_bitmapscan', 'off', true),
  set_config('jit', 'off', true)
