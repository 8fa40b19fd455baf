-- All about a parked or dead message; the newest, if its key was used again.
-- $1: its key; $2: whether with the payload; $3: count those that wait for it up to this number.
-- Index: parked_key, parked_ordering_key. Locking: none.
SELECT
  p.lane,
  p.id,
  p.key,
  p.subject,
  p.ordering_key,
  p.attempts,
  p.dead_at,
  p.error,
  p.replay,
  p.created_at,
  octet_length(p.payload)::bigint AS payload_bytes,
  p.parked_at,
  NULL::timestamptz AS asked_at,
  -- One that waits with others is not tried for now: see release_waiting.sql.
  CASE
    WHEN p.waits_for IS NULL OR p.next_attempt_at < clock_timestamp() + interval '10 minutes' THEN p.next_attempt_at
  END AS next_attempt_at,
  p.next_attempt_at IS NOT NULL AS is_first,
  {schema}.headers_text(p.headers) AS headers,
  CASE WHEN $2 THEN p.payload END AS payload,
  (
    SELECT count(*)
    FROM (
      SELECT
      FROM {schema}.parked AS b
      WHERE b.lane = p.lane AND b.ordering_key = p.ordering_key AND b.dead_at IS NULL AND b.id > p.id
      LIMIT $3
    ) AS behind
  ) AS behind
FROM {schema}.parked AS p
WHERE p.key = $1
ORDER BY p.id DESC
LIMIT 1
