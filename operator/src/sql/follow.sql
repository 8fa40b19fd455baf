-- Have the relay look at the first message of each ordering key of these messages: perhaps nothing
-- stands before it any more. If a dead message does, the relay sees that (read_parked.sql).
-- $1: a lane; $2: ids of messages. Index: message_pkey, parked_ordering_key, parked_pkey. Locking:
-- the lane is locked by lock_lane.sql.
UPDATE {schema}.parked AS p
SET next_attempt_at = clock_timestamp()
FROM (
  SELECT DISTINCT m.lane, m.ordering_key
  FROM {schema}.message AS m
  WHERE m.lane = $1 AND m.id = ANY ($2) AND m.ordering_key IS NOT NULL
) AS s
CROSS JOIN LATERAL (
  SELECT f.id
  FROM {schema}.parked AS f
  WHERE f.lane = s.lane AND f.ordering_key = s.ordering_key AND f.dead_at IS NULL
  ORDER BY f.id
  LIMIT 1
) AS first
WHERE p.lane = s.lane AND p.id = first.id AND p.next_attempt_at IS NULL
