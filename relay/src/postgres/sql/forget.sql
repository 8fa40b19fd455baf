-- Delete the milestones that are older than the retention time, but for the newest of each lane,
-- and the receipts from before it: the messages that they would have sent again are gone.
-- $1: retention time in seconds. A milestone of another cluster says nothing here. Nor does one
-- from the future, until reach.sql has corrected it. Index: lane_pkey, milestone_pkey,
-- receipt_pkey, late_receipt_pkey. Locking: the maintenance row is locked by claim_maintenance.sql.
WITH finished AS MATERIALIZED (
  SELECT l.lane, s.number, s.reached_at
  FROM {schema}.lane AS l
  CROSS JOIN (SELECT c.system_identifier FROM pg_control_system() AS c OFFSET 0) AS here
  CROSS JOIN LATERAL (
    SELECT t.number, t.reached_at
    FROM {schema}.milestone AS t
    WHERE t.lane = l.lane
      AND t.reached_at <= clock_timestamp() - make_interval(secs => $1)
      AND t.system_identifier = here.system_identifier
      AND pg_snapshot_xmax(t.snap) <= pg_snapshot_xmax(pg_current_snapshot())
    ORDER BY t.number DESC
    LIMIT 1
  ) AS s
),
receipts AS (
  DELETE FROM {schema}.receipt AS r
  USING finished AS f
  WHERE r.lane = f.lane AND r.number < f.number
),
late_receipts AS (
  DELETE FROM {schema}.late_receipt AS r
  USING finished AS f
  WHERE r.lane = f.lane AND r.at < f.reached_at
)
DELETE FROM {schema}.milestone AS s
USING finished AS f
WHERE s.lane = f.lane AND s.number < f.number
