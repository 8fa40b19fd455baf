-- Where a message is, and those of the steps below its key.
-- $1: its key; $2: messages at most, in the order of their keys, of one key the newest first. Keys
-- compare by their bytes and hold no blanks, so keys that begin with `key:` lie between `key:` and
-- `key;`. Settled as in cursor.rs, with the rows that a drain or a reset under way has settled: in
-- a restored lane the old ids compare with the old snapshot, and rows of this cluster lie above
-- `high`. A delayed message has lane -1 here; its placeholder in the log says nothing more.
-- Index: delayed_pkey, delayed_key_unique, message_key_unique, parked_key, cursor_pkey,
-- parked_pkey, discarded_pkey, replay_pkey, parked_ordering_key, parked_dead_ordering_key; each
-- OFFSET 0 keeps the planner from reading a whole table for a few rows. Locking: none.
WITH found AS MATERIALIZED (
  (
    SELECT m.lane, m.id, m.xact, m.key, m.subject, m.ordering_key, m.created_at, false AS is_delayed
    FROM {schema}.message AS m
    WHERE m.key = $1::text
  )
  UNION ALL
  -- One whose log came without its rows: it is whole by itself.
  (
    SELECT p.lane, p.id, '3'::xid8, p.key, p.subject, p.ordering_key, p.created_at, false
    FROM {schema}.parked AS p
    WHERE p.key = $1::text
      AND NOT EXISTS (SELECT FROM {schema}.message AS m WHERE m.lane = p.lane AND m.id = p.id)
  )
  UNION ALL
  (
    SELECT -1::smallint, d.id, '3'::xid8, d.key, d.subject, NULL::text, d.created_at, true
    FROM {schema}.delayed AS d
    WHERE d.key = $1::text
  )
  UNION ALL
  (
    SELECT m.lane, m.id, m.xact, m.key, m.subject, m.ordering_key, m.created_at, false AS is_delayed
    FROM {schema}.message AS m
    WHERE m.key COLLATE "C" > $1::text || ':' AND m.key COLLATE "C" < $1::text || ';'
    ORDER BY m.key COLLATE "C"
    LIMIT $2
  )
  UNION ALL
  (
    SELECT -1::smallint, d.id, '3'::xid8, d.key, d.subject, NULL::text, d.created_at, true
    FROM {schema}.delayed AS d
    WHERE d.key > $1::text || ':' AND d.key < $1::text || ';'
    ORDER BY d.key
    LIMIT $2
  )
)
SELECT
  f.lane,
  f.id,
  f.key,
  coalesce(f.subject, '') AS subject,
  f.ordering_key,
  f.created_at,
  y.not_before,
  y.ordering_key AS delayed_ordering_key,
  c.is_settled,
  d.is_discarded,
  p.parked_at,
  p.attempts,
  -- One that waits with others is not tried for now: see release_waiting.sql.
  CASE
    WHEN p.waits_for IS NULL OR p.next_attempt_at < clock_timestamp() + interval '10 minutes' THEN p.next_attempt_at
  END AS next_attempt_at,
  p.dead_at,
  p.error,
  p.cause,
  p.replay AS parked_replay,
  r.number AS replay,
  r.cancelled IS NOT DISTINCT FROM r.number AS is_cancelled,
  r.request,
  r.requested_at,
  b.key AS behind
FROM found AS f
LEFT JOIN LATERAL (
  SELECT e.not_before, e.ordering_key
  FROM {schema}.delayed AS e
  WHERE f.lane = -1 AND e.id = f.id
  OFFSET 0
) AS y ON true
LEFT JOIN LATERAL (
  SELECT
    f.id <= l.floor
      OR f.id <= l.high AND pg_visible_in_snapshot(f.xact, l.snap)
      OR f.id <= l.high AND l.target IS NOT NULL AND f.id <= l.after AND pg_visible_in_snapshot(f.xact, l.target)
      AS is_settled
  FROM {schema}.lane_cursor AS l
  WHERE l.lane = f.lane
  OFFSET 0
) AS c ON true
CROSS JOIN LATERAL (
  SELECT EXISTS (
    SELECT FROM {schema}.discarded AS e
    WHERE e.lane = f.lane AND e.id = f.id
    OFFSET 0
  ) AS is_discarded
) AS d
LEFT JOIN LATERAL (
  SELECT q.parked_at, q.attempts, q.next_attempt_at, q.dead_at, q.error, q.cause, q.replay, q.waits_for
  FROM {schema}.parked AS q
  WHERE q.lane = f.lane AND q.id = f.id
  OFFSET 0
) AS p ON true
LEFT JOIN LATERAL (
  SELECT q.number, q.cancelled, q.request, q.requested_at
  FROM {schema}.replay AS q
  WHERE q.lane = f.lane AND q.id = f.id
  OFFSET 0
) AS r ON true
-- The message that a waiting one waits for: the first of its ordering key if that is due, else the
-- first dead one before it.
LEFT JOIN LATERAL (
  SELECT q.id, q.next_attempt_at
  FROM {schema}.parked AS q
  WHERE q.lane = f.lane AND q.ordering_key = f.ordering_key AND q.dead_at IS NULL AND q.id < f.id
  ORDER BY q.id
  LIMIT 1
) AS first ON p.error IS NOT NULL AND p.dead_at IS NULL AND p.next_attempt_at IS NULL
LEFT JOIN LATERAL (
  SELECT q.id
  FROM {schema}.parked AS q
  WHERE q.lane = f.lane AND q.ordering_key = f.ordering_key AND q.dead_at IS NOT NULL AND q.id < f.id
  ORDER BY q.id
  LIMIT 1
) AS dead ON p.error IS NOT NULL AND p.dead_at IS NULL AND p.next_attempt_at IS NULL
CROSS JOIN LATERAL (
  SELECT CASE WHEN first.next_attempt_at IS NOT NULL THEN first.id ELSE coalesce(dead.id, first.id) END AS id
) AS head
LEFT JOIN LATERAL (
  SELECT m.key
  FROM {schema}.message AS m
  WHERE m.lane = f.lane AND m.id >= head.id AND m.id <= head.id
  ORDER BY m.id
  OFFSET 0
) AS b ON true
WHERE f.lane >= 0 OR f.is_delayed
ORDER BY f.key COLLATE "C", f.id DESC
