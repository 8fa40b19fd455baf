-- Read parked messages that are due again, and those that wait behind them in their ordering keys.
-- $1: lanes, claimed by this transaction; $2: messages at most; $3: bytes at most.
-- Index: parked_due, parked_ordering_key, message_pkey. Locking: none; the lanes are locked by claim.sql.
WITH head AS MATERIALIZED (
  SELECT p.lane, p.id, p.ordering_key
  FROM {schema}.parked AS p
  WHERE p.lane = ANY ($1) AND p.next_attempt_at <= statement_timestamp()
  ORDER BY p.next_attempt_at
  LIMIT $2
),
due AS (
  SELECT h.lane, h.id
  FROM head AS h
  UNION ALL
  SELECT b.lane, b.id
  FROM head AS h
  CROSS JOIN LATERAL (
    SELECT p.lane, p.id
    FROM {schema}.parked AS p
    WHERE p.lane = h.lane AND p.ordering_key = h.ordering_key AND p.id > h.id AND p.dead_at IS NULL
    ORDER BY p.id
    LIMIT $2
  ) AS b
  LIMIT $2
),
sized AS (
  SELECT
    p.attempts,
    extract(epoch FROM clock_timestamp() - p.parked_at)::float8 AS parked_seconds,
    m.*,
    sum(octet_length(m.payload)) OVER (ORDER BY m.id ROWS UNBOUNDED PRECEDING) - octet_length(m.payload) AS bytes_before
  FROM due
  JOIN {schema}.parked AS p ON p.lane = due.lane AND p.id = due.id
  JOIN {schema}.message AS m ON m.lane = due.lane AND m.id = due.id
)
SELECT
  s.lane,
  s.id,
  s.key,
  s.subject,
  s.ordering_key,
  CASE WHEN s.headers <> '{}' THEN s.headers::text END AS headers,
  s.payload,
  s.created_at,
  false AS blocked,
  NULL::text AS snapshot,
  s.attempts,
  s.parked_seconds
FROM sized AS s
WHERE s.bytes_before < $3
ORDER BY s.lane, s.id
