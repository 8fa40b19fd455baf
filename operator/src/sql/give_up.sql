-- Give up messages or replays for good, and record it; then the messages that wait behind them may
-- go on: the first of each ordering key is looked at. If a dead one stands before it, the relay sees
-- that (read_parked.sql). A replay is given up alone: its message was stored once, and can be replayed again.
-- $1: a lane; $2: ids; $3: operator; $4: note; $5: the kind that each must still be, as $8 of
-- list_parked.sql.
-- Index: parked_pkey, parked_ordering_key, replay_pkey. Locking: the lane is locked by lock_lane.sql.
WITH gone AS (
  DELETE FROM {schema}.parked AS p
  WHERE p.lane = $1
    AND p.id = ANY ($2)
    AND CASE $5::text
      WHEN 'dead' THEN p.dead_at IS NOT NULL
      WHEN 'parked' THEN p.dead_at IS NULL AND p.replay = 0
      ELSE p.dead_at IS NULL AND p.replay > 0
    END
  RETURNING p.lane, p.id, p.key, p.subject, p.ordering_key, p.error, p.replay
),
followed AS (
  UPDATE {schema}.parked AS p
  SET next_attempt_at = clock_timestamp()
  FROM (SELECT DISTINCT g.lane, g.ordering_key FROM gone AS g WHERE g.ordering_key IS NOT NULL) AS s
  CROSS JOIN LATERAL (
    SELECT f.id
    FROM {schema}.parked AS f
    WHERE f.lane = s.lane
      AND f.ordering_key = s.ordering_key
      AND f.dead_at IS NULL
      AND NOT EXISTS (SELECT FROM gone AS g WHERE g.id = f.id)
    ORDER BY f.id
    LIMIT 1
  ) AS first
  WHERE p.lane = s.lane AND p.id = first.id AND p.next_attempt_at IS NULL
),
discarded AS (
  INSERT INTO {schema}.discarded (lane, id)
  SELECT g.lane, g.id
  FROM gone AS g
  WHERE g.replay = 0
),
cancelled AS (
  UPDATE {schema}.replay AS r
  SET cancelled = g.replay
  FROM gone AS g
  WHERE g.replay > 0 AND r.lane = g.lane AND r.id = g.id
)
INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
SELECT $3, $4, CASE g.replay WHEN 0 THEN 'discard' ELSE 'cancel' END, g.lane, g.id, g.key, g.subject, g.error
FROM gone AS g
