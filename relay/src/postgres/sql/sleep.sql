-- Mark the relay asleep, so that the next enqueue sends NOTIFY; writes only when the mark is not
-- set, and waits for no disk. Returns whether an enqueue will wake the relay, and the transaction
-- that has set the mark; NULL when it was set already. Where max_prepared_transactions is above 0
-- no enqueue sends NOTIFY: PREPARE TRANSACTION refuses a transaction that has sent one. The setting
-- is read each time, since a restart may change it, and a standby that takes over may have another.
-- Index: none. Locking: none; a sequence is updated in place, outside transactions.
SELECT
  here.notifies,
  CASE WHEN here.notifies AND s.last_value = 0 THEN setval('{schema}.relay_asleep', 1) END AS mark,
  set_config('synchronous_commit', 'off', true) AS commits,
  pg_current_xact_id_if_assigned()::text AS xact
FROM {schema}.relay_asleep AS s
CROSS JOIN (SELECT current_setting('max_prepared_transactions') = '0') AS here (notifies)
