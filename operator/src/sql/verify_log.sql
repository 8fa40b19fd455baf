-- Read messages of a lane in the order of their ids, and say of each whether a stream should hold
-- it: it was settled before the stream was looked at, and is settled now (or it is being sent
-- again), it is for a subject of the stream, and it is not one that was never stored (parked, or
-- given up).
-- $1: the lane; $2: after this id; $3, $4, $5: floor, high and snap of the lane before the stream
-- was looked at, snap NULL when only the floor counts; $6: messages at most; $7: regular expression
-- of the subjects; $8: enqueued at this time or later, NULL for all; $9: enqueued
-- before this time, NULL for all.
-- Index: message_pkey, cursor_pkey, parked_pkey, discarded_pkey. Locking: none: verify_resend.sql
-- looks again under the lane's lock.
WITH seen AS MATERIALIZED (
  SELECT m.id, m.xact, m.key, m.subject, m.created_at
  FROM {schema}.message AS m
  WHERE m.lane = $1 AND m.id > $2 AND m.id <= greatest($3::bigint, $4::bigint)
  ORDER BY m.id
  LIMIT $6
)
SELECT
  s.id,
  s.key,
  s.subject,
  s.created_at,
  EXISTS (
    SELECT FROM {schema}.parked AS p
    WHERE p.lane = $1 AND p.id = s.id AND p.replay = 0
    OFFSET 0
  ) AND s.subject COLLATE "C" ~ $7::text AND ($8::timestamptz IS NULL OR s.created_at >= $8)
    AND ($9::timestamptz IS NULL OR s.created_at < $9) AS is_parked,
  (s.id <= $3 OR $5::text IS NOT NULL AND s.id <= $4 AND pg_visible_in_snapshot(s.xact, $5::pg_snapshot))
    AND (s.id <= c.floor OR s.id <= c.high AND c.reset_until IS NULL AND pg_visible_in_snapshot(s.xact, c.snap))
    AND s.subject COLLATE "C" ~ $7::text
    AND ($8::timestamptz IS NULL OR s.created_at >= $8)
    AND ($9::timestamptz IS NULL OR s.created_at < $9)
    AND NOT EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = $1 AND p.id = s.id AND p.replay = 0
      OFFSET 0
    )
    AND NOT EXISTS (
      SELECT FROM {schema}.discarded AS d
      WHERE d.lane = $1 AND d.id = s.id
      OFFSET 0
    ) AS is_expected
FROM seen AS s
CROSS JOIN {schema}.lane_cursor AS c
WHERE c.lane = $1
ORDER BY s.id
