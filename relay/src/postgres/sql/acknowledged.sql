-- Read what streams have acknowledged, lane by lane, with how each stream was when it was last
-- checked. Rows of a lane whose transaction ids come from another cluster are drained first.
-- The name "*" stands for streams of which nothing is known: delivery/receipt.rs.
-- Index: cursor_pkey, stream_pkey. Locking: none.
SELECT
  a.key AS stream,
  c.lane,
  c.number,
  (a.value ->> 0)::bigint AS sequence,
  a.value ->> 1 AS message_id,
  s.created,
  s.checked_at,
  statement_timestamp() AS read_at
FROM {schema}.lane_cursor AS c
CROSS JOIN LATERAL jsonb_each(c.acknowledged) AS a
LEFT JOIN {schema}.stream AS s ON s.name = a.key
WHERE c.reset_until IS NULL AND a.key <> '*'
ORDER BY a.key COLLATE "C", c.lane
