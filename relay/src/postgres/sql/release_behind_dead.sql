-- Where dead messages do not block their ordering keys: have the first message of each key that
-- waits for one looked at. It waits from a time when a relay ran with another setting.
-- $1: the lane; $2: after this id; $3: dead messages to look at, at most.
-- Returns the last id looked at, how many that were, how many messages were released.
-- Index: parked_dead, parked_ordering_key, parked_pkey. Locking: the lane is locked by
--   claim_lane.sql.
WITH seen AS MATERIALIZED (
  SELECT d.id, d.ordering_key
  FROM {schema}.parked AS d
  WHERE d.lane = $1 AND d.dead_at IS NOT NULL AND d.id > $2
  ORDER BY d.id
  LIMIT $3
),
released AS (
  UPDATE {schema}.parked AS p
  SET next_attempt_at = clock_timestamp()
  FROM (SELECT DISTINCT s.ordering_key FROM seen AS s WHERE s.ordering_key IS NOT NULL) AS k
  CROSS JOIN LATERAL (
    SELECT f.id
    FROM {schema}.parked AS f
    WHERE f.lane = $1 AND f.ordering_key = k.ordering_key AND f.dead_at IS NULL
    ORDER BY f.id
    LIMIT 1
  ) AS first
  WHERE p.lane = $1 AND p.id = first.id AND p.next_attempt_at IS NULL
  RETURNING p.id
)
SELECT
  (SELECT max(s.id) FROM seen AS s) AS last_id,
  (SELECT count(*) FROM seen AS s) >= $3 AS is_full,
  (SELECT count(*) FROM released AS r) AS released
