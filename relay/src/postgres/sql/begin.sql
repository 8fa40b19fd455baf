-- Open the claiming transaction. Everything here ends with the transaction, so that a transaction
-- pooler works. PostgreSQL ends the session of a relay that is suspended: after 20 s between two
-- statements, and after 15 s in which the relay takes nothing of an answer. The second holds over
-- TCP only, and end_unread.sql does the rest. A relay that waits for NATS says every few seconds
-- that it is there (postgres/session.rs). A limit that the role or the database has for
-- transactions (PostgreSQL 17) does not hold: a pass that waits for a slow NATS would be undone,
-- and made again for ever. The planner settings do not depend on the statistics: a log that grew by
-- a million rows a second ago must still be read by its indexes, and no statement is planned twice,
-- since planning was more than half of a pass. No commit waits for the disk: if a crash of
-- PostgreSQL takes back the last moments, their messages are sent again under the same ids. Row
-- security is off, so that a policy which would hide rows from the relay is an error instead of
-- messages that are never delivered. Returns the token of the session: postgres/pooler.rs.
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT
  current_setting('oncebox.session', true) AS token,
  set_config('statement_timeout', '30s', true),
  set_config('lock_timeout', '10s', true),
  set_config('idle_in_transaction_session_timeout', '20s', true),
  set_config('tcp_user_timeout', '15s', true),
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
