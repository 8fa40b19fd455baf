-- All about a parked or dead message; the newest, if its key was used again.
-- $1: its key; $2: whether with the payload; $3: count those behind it up to this number.
-- Index: message_key_unique, parked_pkey, parked_ordering_key. Locking: none.
SELECT
  m.lane,
  m.id,
  m.key,
  m.subject,
  m.ordering_key,
  p.attempts,
  p.dead_at,
  p.error,
  p.replay,
  m.created_at,
  octet_length(m.payload)::bigint AS payload_bytes,
  p.parked_at,
  -- One that waits with others is not tried for now: see release_waiting.sql.
  CASE
    WHEN p.waits_for IS NULL OR p.next_attempt_at < clock_timestamp() + interval '10 minutes' THEN p.next_attempt_at
  END AS next_attempt_at,
  {schema}.headers_text(m.headers) AS headers,
  CASE WHEN $2 THEN m.payload END AS payload,
  (
    SELECT count(*)
    FROM (
      SELECT
      FROM {schema}.parked AS b
      WHERE b.lane = m.lane AND b.ordering_key = m.ordering_key AND b.dead_at IS NULL AND b.id > m.id
      LIMIT $3
    ) AS behind
  ) AS behind
FROM {schema}.message AS m
JOIN {schema}.parked AS p ON p.lane = m.lane AND p.id = m.id
WHERE m.key = $1
ORDER BY m.id DESC
LIMIT 1
