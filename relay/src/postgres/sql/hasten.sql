-- Make messages due whose next attempt is further ahead than any pause of one that is tried: the
-- clock was ahead when they were set aside, and has gone back. Those that wait for others of their
-- cause may have such times, and are released by these (release_waiting.sql).
-- $1: how many at most.
-- Index: parked_due, from its end: few rows, unless many wait for others. Locking: the rows, unless
-- another session has them.
UPDATE {schema}.parked AS p
SET next_attempt_at = statement_timestamp()
FROM (
  SELECT q.lane, q.id
  FROM {schema}.lane AS l
  CROSS JOIN LATERAL (
    SELECT r.lane, r.id
    FROM {schema}.parked AS r
    WHERE r.lane = l.lane
      AND r.next_attempt_at > statement_timestamp() + interval '10 minutes'
      AND r.waits_for IS NULL
    ORDER BY r.next_attempt_at DESC
    LIMIT $1
    FOR UPDATE SKIP LOCKED
  ) AS q
  LIMIT $1
) AS ahead
WHERE p.lane = ahead.lane AND p.id = ahead.id
