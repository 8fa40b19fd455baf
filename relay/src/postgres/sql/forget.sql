-- Delete the milestones of lanes before those that retention has finished, and the receipts: the
-- messages that they would have sent again are gone.
-- $1: lanes; $2: the number of each one's. Index: milestone_pkey, receipt_pkey, late_receipt_pkey.
-- Locking: as prune.sql.
WITH finished AS MATERIALIZED (
  SELECT s.lane, s.number, s.reached_at
  FROM unnest($1::smallint[], $2::bigint[]) AS w (lane, number)
  JOIN {schema}.milestone AS s ON s.lane = w.lane AND s.number = w.number
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
USING unnest($1::smallint[], $2::bigint[]) AS w (lane, number)
WHERE s.lane = w.lane AND s.number < w.number
