-- Ordering keys that a dead message holds back: the first message of the key that is still to be
-- sent comes after a dead one and has no due time. Where dead messages do not block, it has one.
-- $1: ordering keys with dead messages to look at, at most; $2: keys to return; $3: count those
--   that follow, up to this number.
-- Index: parked_dead_ordering_key, from key to key; parked_ordering_key. Locking:
--   none.
WITH RECURSIVE looked_at AS (
  (
    SELECT p.lane, p.ordering_key, 1 AS place
    FROM {schema}.parked AS p
    WHERE p.ordering_key IS NOT NULL AND p.dead_at IS NOT NULL
    ORDER BY p.lane, p.ordering_key
    LIMIT 1
  )
  UNION ALL
  SELECT next.lane, next.ordering_key, h.place + 1
  FROM looked_at AS h
  CROSS JOIN LATERAL (
    SELECT p.lane, p.ordering_key
    FROM {schema}.parked AS p
    WHERE p.ordering_key IS NOT NULL
      AND p.dead_at IS NOT NULL
      AND (p.lane, p.ordering_key) > (h.lane, h.ordering_key)
    ORDER BY p.lane, p.ordering_key
    LIMIT 1
  ) AS next
  WHERE h.place < $1
),
blocked AS (
  SELECT h.lane, h.ordering_key, dead.id, dead.key, dead.subject, dead.error, dead.dead_at, count(*) OVER () AS keys
  FROM looked_at AS h
  CROSS JOIN LATERAL (
    SELECT p.id, p.key, p.subject, p.error, p.dead_at
    FROM {schema}.parked AS p
    WHERE p.lane = h.lane AND p.ordering_key = h.ordering_key AND p.dead_at IS NOT NULL
    ORDER BY p.id
    LIMIT 1
  ) AS dead
  CROSS JOIN LATERAL (
    SELECT p.id, p.next_attempt_at
    FROM {schema}.parked AS p
    WHERE p.lane = h.lane AND p.ordering_key = h.ordering_key AND p.dead_at IS NULL
    ORDER BY p.id
    LIMIT 1
  ) AS first
  WHERE first.id > dead.id AND first.next_attempt_at IS NULL
  ORDER BY dead.id
  LIMIT $2
)
SELECT
  b.keys,
  b.lane,
  b.ordering_key,
  b.key,
  b.subject,
  b.error,
  b.dead_at,
  (
    SELECT count(*)
    FROM (
      SELECT
      FROM {schema}.parked AS p
      WHERE p.lane = b.lane AND p.ordering_key = b.ordering_key AND p.dead_at IS NULL
      LIMIT $3
    ) AS behind
  ) AS behind
FROM blocked AS b
ORDER BY b.id
