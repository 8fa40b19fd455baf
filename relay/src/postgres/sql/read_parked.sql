-- Read parked messages that are due again, and those that wait for them in their ordering keys. $1:
-- lanes, claimed by this transaction; $2: messages at most; $3: bytes at most; $4: whether dead
-- messages block their ordering key; $5: as in read.sql. A due time is only a hint to look: a
-- message that is not the first of its ordering key is returned as blocked, and not sent. Index:
-- parked_due, parked_ordering_key, parked_dead_ordering_key, parked_pkey, replay_pkey. Locking:
-- none; the lanes are locked by claim.sql.
WITH looked_at AS MATERIALIZED (
  SELECT
    p.lane,
    p.id,
    p.ordering_key,
    p.ordering_key IS NOT NULL AND (
      EXISTS (
        SELECT FROM {schema}.parked AS e
        WHERE e.lane = p.lane AND e.ordering_key = p.ordering_key AND e.dead_at IS NULL AND e.id < p.id
        OFFSET 0
      )
      OR $4 AND EXISTS (
        SELECT FROM {schema}.parked AS e
        WHERE e.lane = p.lane AND e.ordering_key = p.ordering_key AND e.dead_at IS NOT NULL AND e.id < p.id
        OFFSET 0
      )
    ) AS blocked
  FROM unnest($1::smallint[]) AS l (lane)
  -- From the front of the index, lane by lane: many may be due.
  CROSS JOIN LATERAL (
    SELECT q.lane, q.id, q.ordering_key, q.next_attempt_at
    FROM {schema}.parked AS q
    WHERE q.lane = l.lane AND q.next_attempt_at <= statement_timestamp()
    ORDER BY q.next_attempt_at
    LIMIT $2
  ) AS p
  ORDER BY p.next_attempt_at
  LIMIT $2
),
found AS (
  SELECT h.lane, h.id, h.blocked
  FROM looked_at AS h
  UNION ALL
  SELECT b.lane, b.id, false
  FROM looked_at AS h
  CROSS JOIN LATERAL (
    SELECT p.lane, p.id
    FROM {schema}.parked AS p
    WHERE p.lane = h.lane
      AND p.ordering_key = h.ordering_key
      AND p.id > h.id
      AND p.dead_at IS NULL
      -- Up to the next dead one, if that blocks.
      AND p.id < coalesce((
        SELECT d.id
        FROM {schema}.parked AS d
        WHERE $4 AND d.lane = h.lane AND d.ordering_key = h.ordering_key AND d.dead_at IS NOT NULL AND d.id > h.id
        ORDER BY d.id
        LIMIT 1
      ), 9223372036854775807)
    ORDER BY p.id
    -- They are sent one after another, and the rest of the pass waits for them: 32 at most, and 4
    -- where the log fills the pass, whose $2 is small.
    LIMIT least(greatest($2 / 16, 4), 32)
  ) AS b
  WHERE NOT h.blocked
  LIMIT $2
),
due AS (
  -- A message may be found both ways.
  SELECT f.lane, f.id, bool_and(f.blocked) AS blocked
  FROM found AS f
  GROUP BY f.lane, f.id
),
sized AS (
  SELECT
    due.blocked,
    p.attempts,
    (extract(epoch FROM clock_timestamp()) - extract(epoch FROM p.parked_at))::float8 AS parked_seconds,
    p.next_attempt_at IS NOT NULL AS is_due,
    p.waits_for,
    p.replay,
    -- Only of a replay; its number and this make an id for the broker.
    r.requested_at,
    p.lane,
    p.id,
    p.key,
    p.subject,
    p.ordering_key,
    p.headers,
    p.payload,
    p.created_at,
    sum(octet_length(p.payload)) OVER (ORDER BY p.id ROWS UNBOUNDED PRECEDING) - octet_length(p.payload) AS bytes_before
  FROM due
  JOIN {schema}.parked AS p ON p.lane = due.lane AND p.id = due.id
  LEFT JOIN {schema}.replay AS r ON p.replay > 0 AND r.lane = due.lane AND r.id = due.id
)
SELECT
  s.lane,
  s.id,
  s.key,
  s.subject,
  s.ordering_key,
  CASE WHEN s.headers <> '{}' THEN {schema}.headers_text(s.headers) END AS headers,
  CASE WHEN octet_length(s.payload) <= $5 THEN s.payload END AS payload,
  s.created_at,
  s.blocked,
  NULL::text AS snapshot,
  s.attempts,
  s.parked_seconds,
  s.is_due,
  s.replay,
  s.requested_at,
  s.waits_for,
  octet_length(s.payload) AS payload_bytes
FROM sized AS s
WHERE s.bytes_before < $3
ORDER BY s.lane, s.id
