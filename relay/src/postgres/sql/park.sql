-- Set messages aside, each with its contents, or note another failed attempt at a parked one. $1:
-- lanes; $2: ids; $3: attempts; $4: seconds until the next attempt, NULL for a message that waits
-- for others of its ordering key or is dead; $5: dead; $6: errors; $7: causes; $8: the obstacle
-- that they wait for with others, or NULL.
-- A message that is parked already need not be in the log any more, so the log is read for the
-- others alone.
-- Index: parked_pkey, message_pkey; ORDER BY as claim.sql explains. Locking: the lanes are locked
-- by claim.sql.
WITH set_aside AS MATERIALIZED (
  SELECT
    s.lane,
    s.id,
    s.attempts,
    clock_timestamp() + make_interval(secs => s.delay_seconds) AS next_attempt_at,
    CASE WHEN s.dead THEN clock_timestamp() END AS dead_at,
    s.error,
    s.cause,
    s.waits_for
  FROM unnest($1::smallint[], $2::bigint[], $3::integer[], $4::float8[], $5::boolean[], $6::text[], $7::text[], $8::text[])
    AS s (lane, id, attempts, delay_seconds, dead, error, cause, waits_for)
),
again AS (
  UPDATE {schema}.parked AS p
  SET
    attempts = s.attempts,
    next_attempt_at = s.next_attempt_at,
    dead_at = s.dead_at,
    error = s.error,
    cause = s.cause,
    waits_for = s.waits_for
  FROM set_aside AS s
  WHERE p.lane = s.lane AND p.id = s.id
  RETURNING p.lane, p.id
),
segment AS MATERIALIZED (
  SELECT to_regclass(format('{schema}.message_%s', s.number))::oid AS part, s.turn
  FROM {schema}.segment AS s
)
INSERT INTO {schema}.parked (
  lane, id, turn, ordering_key, attempts, next_attempt_at, dead_at, error, cause, waits_for, key, subject, headers, payload,
  created_at
)
SELECT
  s.lane,
  s.id,
  coalesce(g.turn, -1),
  m.ordering_key,
  s.attempts,
  s.next_attempt_at,
  s.dead_at,
  s.error,
  s.cause,
  s.waits_for,
  m.key,
  m.subject,
  m.headers,
  m.payload,
  m.created_at
FROM set_aside AS s
CROSS JOIN LATERAL (
  SELECT n.*
  FROM {schema}.log AS n
  WHERE n.lane = s.lane AND n.id >= s.id AND n.id <= s.id
  ORDER BY n.id
  LIMIT 1
) AS m
LEFT JOIN segment AS g ON g.part = m.tableoid
WHERE NOT EXISTS (SELECT FROM again AS a WHERE a.lane = s.lane AND a.id = s.id)
