-- Count the messages of a lane that would be sent again: settled since the receipt that the stream
-- can prove, to subjects of the stream. The stream drops those that it still has, as duplicates.
-- $1: the lane; $2: the stream; $3: not those enqueued before this time, NULL for all.
-- Index: message_pkey, parked_pkey, discarded_pkey; it reads the lane's part of the log. Locking:
-- none.
SELECT count(*) AS messages
FROM (
  SELECT l.lane, l.floor, l.high, l.snap
  FROM {schema}.loss AS l
  WHERE l.lane = $1::smallint AND l.stream = $2::text AND l.resending_at IS NULL
  ORDER BY l.number
  LIMIT 1
) AS lost
JOIN {schema}.lane_cursor AS c ON c.lane = lost.lane
JOIN {schema}.message AS m ON m.lane = lost.lane
JOIN {schema}.stream AS s ON s.name = $2::text
WHERE m.id > lost.floor
  AND (m.id > lost.high OR NOT pg_visible_in_snapshot(m.xact, lost.snap))
  AND (m.id <= c.floor OR m.id <= c.high AND pg_visible_in_snapshot(m.xact, c.snap))
  AND m.subject COLLATE "C" ~ s.subjects
  AND ($3::timestamptz IS NULL OR m.created_at >= $3::timestamptz)
  AND NOT EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = m.lane AND p.id = m.id OFFSET 0)
  AND NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = m.lane AND d.id = m.id OFFSET 0)
