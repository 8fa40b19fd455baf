-- Of messages in lanes that are sent again, find those that are not to be sent: settled before, and
-- parked, dead or discarded, or none of a stream that has lost something. A message that the cursor
-- did not call settled when the lane was rewound is sent for the first time.
-- $1: lanes, claimed by this transaction; $2: ids.
-- Index: message_pkey, loss_resending, parked_pkey, discarded_pkey; ORDER BY as claim.sql explains.
-- Locking: none; the lanes are locked by claim.sql.
SELECT m.lane, m.id
FROM unnest($1::smallint[], $2::bigint[]) AS w (lane, id)
CROSS JOIN LATERAL (
  SELECT n.lane, n.id, n.xact, n.subject
  FROM {schema}.log AS n
  WHERE n.lane = w.lane AND n.id >= w.id AND n.id <= w.id
  ORDER BY n.id
  OFFSET 0
) AS m
WHERE EXISTS (
    SELECT FROM {schema}.loss AS u
    WHERE u.lane = m.lane
      AND u.resending_at IS NOT NULL
      AND u.ended_at IS NULL
      AND (
        m.id <= u.until_floor
        OR m.id <= u.until_high AND pg_visible_in_snapshot(m.xact, u.until_snap)
        OR m.id <= u.until_after AND pg_visible_in_snapshot(m.xact, u.until_target)
      )
  )
  AND (
    EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = m.lane AND p.id = m.id
      OFFSET 0
    )
    OR EXISTS (
      SELECT FROM {schema}.discarded AS d
      WHERE d.lane = m.lane AND d.id = m.id
      OFFSET 0
    )
    OR NOT EXISTS (
      SELECT FROM {schema}.loss AS l
      WHERE l.lane = m.lane
        AND l.resending_at IS NOT NULL
        AND l.ended_at IS NULL
        AND m.subject COLLATE "C" ~ l.subjects
    )
  )
