-- Where a stream stored a message, as far as receipts say: exactly for a message that had been set
-- aside, else at or below the sequence of the first receipt that has it settled.
-- $1: the lane; $2: the id; $3: the stream.
-- Index: late_receipt_pkey, receipt_pkey, message_pkey; receipts are thinned to one a minute.
-- Locking: none.
(
  SELECT l.sequence, true AS is_exact
  FROM {schema}.late_receipt AS l
  WHERE l.lane = $1::smallint AND l.id = $2::bigint AND l.replay = 0 AND l.stream = $3::text
  ORDER BY l.sequence
  LIMIT 1
)
UNION ALL
(
  SELECT r.sequence, false
  FROM {schema}.message AS m
  JOIN {schema}.receipt AS r ON r.lane = m.lane
  WHERE m.lane = $1::smallint
    AND m.id = $2::bigint
    AND r.stream = $3::text
    AND (m.id <= r.floor OR m.id <= r.high AND pg_visible_in_snapshot(m.xact, r.snap))
  ORDER BY r.number
  LIMIT 1
)
