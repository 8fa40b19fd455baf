-- Read the sequences that streams have acknowledged, lane by lane, with how each stream was when it
-- was last checked. Rows of a lane whose transaction ids come from another cluster are drained
-- first.
-- A check covers messages that were settled seconds before it; a check in the future does not
-- count.
-- Index: cursor_pkey, stream_pkey. Locking: none.
SELECT
  a.key AS stream,
  c.lane,
  c.number,
  (a.value ->> 0)::bigint AS sequence,
  a.value ->> 1 AS message_id,
  s.created,
  s.checked_at,
  s.subjects,
  coalesce(c.settled_at < s.checked_at - interval '5 seconds', false) AS is_checked,
  statement_timestamp() AS read_at
FROM {schema}.lane_cursor AS c
CROSS JOIN LATERAL jsonb_each(c.acknowledged) AS a
LEFT JOIN LATERAL (
  -- A time that cannot be one would fail this statement, and with it all delivery.
  SELECT t.created, t.subjects,
         CASE WHEN t.checked_at BETWEEN '2000-01-01' AND statement_timestamp() THEN t.checked_at END AS checked_at
  FROM {schema}.stream AS t
  WHERE t.name = a.key
) AS s ON true
WHERE c.reset_until IS NULL
ORDER BY a.key COLLATE "C", c.lane
