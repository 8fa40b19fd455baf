-- Where each lane stands: its cursor, and its newest message. A later look counts the messages
--   between, see status_rates.sql.
-- Index: cursor_pkey; message_pkey, the end of each lane. Locking: none.
SELECT
  l.lane,
  l.high,
  coalesce(newest.id, l.high) AS newest,
  clock_timestamp() AS looked_at
FROM {schema}.lane_cursor AS l
LEFT JOIN LATERAL (
  SELECT m.id
  FROM {schema}.log AS m
  WHERE m.lane = l.lane AND m.id > l.high
  ORDER BY m.id DESC
  LIMIT 1
) AS newest ON true
ORDER BY l.lane
