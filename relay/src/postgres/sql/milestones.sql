-- Find the newest milestone of each lane that is older than the retention time.
-- $1: retention time in seconds.
-- One of another cluster says nothing here. Nor does one from the future, until reach.sql has
-- corrected it.
-- Index: lane_pkey, milestone_pkey. Locking: none.
SELECT l.lane, s.number
FROM {schema}.lane AS l
CROSS JOIN (SELECT c.system_identifier FROM pg_control_system() AS c OFFSET 0) AS here
CROSS JOIN LATERAL (
  SELECT t.number
  FROM {schema}.milestone AS t
  WHERE t.lane = l.lane
    AND t.reached_at <= clock_timestamp() - make_interval(secs => $1)
    AND t.system_identifier = here.system_identifier
    AND pg_snapshot_xmax(t.snap) <= pg_snapshot_xmax(pg_current_snapshot())
  ORDER BY t.number DESC
  LIMIT 1
) AS s
ORDER BY l.lane
