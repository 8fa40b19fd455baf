-- Set messages aside, or note another failed attempt at a parked one.
-- $1: lanes; $2: ids; $3: ordering keys; $4: attempts; $5: seconds until the next attempt, NULL for
-- a message that waits behind its ordering key or is dead; $6: dead; $7: errors; $8: causes; $9:
-- the obstacle that they wait for with others, or NULL.
-- Index: parked_pkey. Locking: the lanes are locked by claim.sql.
INSERT INTO {schema}.parked AS p (lane, id, ordering_key, attempts, next_attempt_at, dead_at, error, cause, waits_for)
SELECT
  s.lane,
  s.id,
  s.ordering_key,
  s.attempts,
  clock_timestamp() + make_interval(secs => s.delay_seconds),
  CASE WHEN s.dead THEN clock_timestamp() END,
  s.error,
  s.cause,
  s.waits_for
FROM unnest($1::smallint[], $2::bigint[], $3::text[], $4::integer[], $5::float8[], $6::boolean[], $7::text[], $8::text[], $9::text[])
  AS s (lane, id, ordering_key, attempts, delay_seconds, dead, error, cause, waits_for)
ON CONFLICT ON CONSTRAINT parked_pkey DO UPDATE
SET
  attempts = excluded.attempts,
  next_attempt_at = excluded.next_attempt_at,
  dead_at = excluded.dead_at,
  error = excluded.error,
  cause = excluded.cause,
  waits_for = excluded.waits_for
