-- Read the receipts of a stream since it was last checked.
-- $1: the stream; $2: when it was checked, NULL for never; $3: receipts of a lane, at most. Those
-- of the seconds before are read as well: a transaction may take that long to commit.
-- Index: lane_pkey, receipt_pkey. Locking: none.
SELECT l.lane, r.number, r.sequence, r.message_id
FROM {schema}.lane AS l
CROSS JOIN LATERAL (
  SELECT o.number, o.sequence, o.message_id, o.at
  FROM {schema}.receipt AS o
  WHERE o.lane = l.lane AND o.stream = $1::text
  ORDER BY o.number DESC
  LIMIT $3
) AS r
WHERE $2::timestamptz IS NULL OR r.at > $2::timestamptz - interval '5 seconds'
