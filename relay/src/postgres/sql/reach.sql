-- Write down where the cursors stand, for those that have moved since the last time; returns the
-- lanes with dead messages.
-- $1: seconds that must have passed since a lane's last milestone.
-- A cursor whose snapshot comes from another cluster says nothing that may be kept.
-- A milestone from the future was written while the clock was ahead. Unless it is corrected, no
-- other one is written until that time. It was reached before now, so it gets the present time.
-- Index: cursor_pkey, milestone_pkey, parked_dead. Locking: the maintenance row is locked by
-- claim_maintenance.sql. Cursors are read without their lanes' locks: a committed one is true, and
-- stays true.
WITH corrected AS (
  UPDATE {schema}.milestone AS s
  SET reached_at = clock_timestamp()
  WHERE s.reached_at > clock_timestamp()
),
reached AS (
  INSERT INTO {schema}.milestone (lane, number, floor, high, snap, system_identifier)
  SELECT c.lane, c.number, c.floor, c.high, c.snap, c.system_identifier
  FROM {schema}.lane_cursor AS c
  CROSS JOIN (SELECT s.system_identifier FROM pg_control_system() AS s OFFSET 0) AS here
  LEFT JOIN LATERAL (
    SELECT s.number, s.reached_at
    FROM {schema}.milestone AS s
    WHERE s.lane = c.lane
    ORDER BY s.number DESC
    LIMIT 1
  ) AS last ON true
  WHERE c.system_identifier = here.system_identifier
    AND c.reset_until IS NULL
    AND pg_snapshot_xmax(c.snap) <= pg_snapshot_xmax(pg_current_snapshot())
    AND (
      last.number IS NULL
      OR last.number < c.number AND last.reached_at <= clock_timestamp() - make_interval(secs => $1)
    )
)
SELECT l.lane
FROM {schema}.lane AS l
WHERE EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = l.lane AND p.dead_at IS NOT NULL)
ORDER BY l.lane
