-- The pauses and throttles of now, the newest first.
-- $1: how many at most. Index: pause_pkey. Locking: none.
SELECT
  kind,
  value,
  rate,
  subjects,
  reason,
  paused_by,
  database_user,
  paused_at,
  nullif(ends_at, 'infinity') AS ends_at
FROM {schema}.pause
WHERE ends_at > clock_timestamp()
ORDER BY paused_at DESC, kind, value
LIMIT $1
