-- Find messages that wait with others of which none is tried: see delivery/breaker.rs and
-- release_waiting.sql.
-- $1: the most obstacles to look at, in all lanes together.
-- Index: parked_waits_for, from group to group. Locking: none: release_waiting.sql looks again
-- under the lane's lock.
WITH RECURSIVE waiting AS (
  (
    SELECT p.lane, p.waits_for, p.next_attempt_at, 1::bigint AS place
    FROM {schema}.parked AS p
    WHERE p.waits_for IS NOT NULL
    ORDER BY p.lane, p.waits_for, p.next_attempt_at
    LIMIT 1
  )
  UNION ALL
  SELECT next.lane, next.waits_for, next.next_attempt_at, w.place + 1
  FROM waiting AS w
  CROSS JOIN LATERAL (
    SELECT p.lane, p.waits_for, p.next_attempt_at
    FROM {schema}.parked AS p
    WHERE p.waits_for IS NOT NULL AND (p.lane, p.waits_for) > (w.lane, w.waits_for)
    ORDER BY p.lane, p.waits_for, p.next_attempt_at
    LIMIT 1
  ) AS next
  WHERE w.place < $1::bigint
)
SELECT w.lane, w.waits_for
FROM waiting AS w
WHERE w.next_attempt_at > statement_timestamp() + interval '10 minutes'
