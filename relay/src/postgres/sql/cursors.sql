-- Read where claimed lanes stand.
-- $1: lanes, claimed by this transaction. read_at, by the clock that stamps messages, lets the
-- relay tell their age without trusting its own clock. A lane is foreign when its transaction ids
-- come from another cluster: a restored dump, or an xmax from the future.
-- Index: cursor_pkey. Locking: the lanes are locked by claim.sql; this statement's snapshot is
--   younger than the lock.
SELECT
  l.lane,
  l.number,
  l.floor,
  l.high,
  l.target::text AS target,
  l.after,
  l.reset_until,
  l.system_identifier <> here.system_identifier
    OR l.reset_until IS NULL AND pg_snapshot_xmax(l.snap) > pg_snapshot_xmax(pg_current_snapshot()) AS is_foreign,
  pg_current_snapshot()::text AS snapshot,
  clock_timestamp() AS read_at
FROM {schema}.lane_cursor AS l
CROSS JOIN (SELECT s.system_identifier FROM pg_control_system() AS s OFFSET 0) AS here
WHERE l.lane = ANY ($1)
