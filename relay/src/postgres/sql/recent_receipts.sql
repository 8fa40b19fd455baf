-- Read the receipts of streams since each was last checked.
-- $1: the streams; $2: when each was checked, NULL for never; $3: receipts of a lane, at most.
-- Receipts of the seconds before that check are read as well: a transaction that appended one may
-- take that time to commit.
-- Index: lane_pkey, receipt_pkey. Locking: none.
SELECT s.name AS stream, l.lane, r.number, r.sequence, r.message_id
FROM {schema}.lane AS l
CROSS JOIN unnest($1::text[], $2::timestamptz[]) AS s (name, checked_at)
CROSS JOIN LATERAL (
  SELECT o.number, o.sequence, o.message_id, o.at
  FROM {schema}.receipt AS o
  WHERE o.lane = l.lane AND o.stream = s.name
  ORDER BY o.number DESC
  LIMIT $3
) AS r
WHERE s.checked_at IS NULL OR r.at > s.checked_at - interval '5 seconds'
