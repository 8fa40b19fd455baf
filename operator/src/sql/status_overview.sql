-- The database's time, the milestones that retention uses, whether this role sees the activity of
-- other users' sessions, whether it takes writes, whether it may look into the inboxes, whether it
-- may count there, and whether it may look at canaries. Index: milestone_pkey, its first and last
-- entry of each lane.
-- Locking: none.
SELECT
  clock_timestamp() AS now,
  -- The default, not the setting of this transaction, which only reads.
  pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on' AS is_read_only,
  pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all_sessions,
  has_table_privilege('{schema}.dead_letter', 'SELECT')
    AND has_table_privilege('{schema}.inbox_behind', 'SELECT') AS sees_inboxes,
  has_table_privilege('{schema}.canary', 'SELECT') AS sees_canaries,
  has_column_privilege('{schema}.inbox_attempt', 'reason', 'SELECT')
    AND has_column_privilege('{schema}.inbox', 'key', 'SELECT')
    AND has_column_privilege('{schema}.dead_letter', 'stream', 'SELECT')
    AND has_column_privilege('{schema}.inbox_snooze', 'due_at', 'SELECT')
    AND has_table_privilege('{schema}.inbox_scope', 'SELECT') AS counts_inboxes,
  min(first.reached_at) AS oldest_milestone,
  max(last.reached_at) AS newest_milestone
FROM {schema}.lane AS l
LEFT JOIN LATERAL (
  SELECT s.reached_at
  FROM {schema}.milestone AS s
  WHERE s.lane = l.lane
  ORDER BY s.number
  LIMIT 1
) AS first ON true
LEFT JOIN LATERAL (
  SELECT s.reached_at
  FROM {schema}.milestone AS s
  WHERE s.lane = l.lane
  ORDER BY s.number DESC
  LIMIT 1
) AS last ON true
