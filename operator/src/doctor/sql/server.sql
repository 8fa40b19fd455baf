-- The server, the role, and the settings that a promise rests on. Index: none: one row. Locking:
-- none.
SELECT
  clock_timestamp() AS now,
  current_setting('server_version') AS version,
  current_setting('server_version_num')::integer AS version_number,
  current_user::text AS role_name,
  (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user) AS is_superuser,
  pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean AS is_read_only,
  current_setting('fsync')::boolean AS fsyncs,
  current_setting('synchronous_commit') AS synchronous_commit,
  current_setting('synchronous_standby_names') AS synchronous_standby_names,
  -- FIRST 2 (a, b), ANY 2 (a, b), 2 (a, b), or the names alone, of which one is awaited.
  coalesce(
    substring(current_setting('synchronous_standby_names') FROM '(?i)^\s*(?:FIRST|ANY)?\s*([0-9]+)\s*\('), '1'
  )::bigint AS awaited_standbys,
  s.standbys,
  s.synchronous_standbys,
  s.unapplied_bytes
FROM (
  SELECT
    count(*) AS standbys,
    -- NULL where this role may not see it.
    CASE WHEN count(*) = count(r.sync_state) THEN count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum')) END
      AS synchronous_standbys,
    CASE WHEN NOT pg_is_in_recovery()
      THEN max(pg_wal_lsn_diff(pg_current_wal_lsn(), r.replay_lsn)) FILTER (WHERE r.sync_state IN ('sync', 'quorum'))::bigint
    END AS unapplied_bytes
  FROM pg_stat_replication AS r
) AS s
