-- Give up messages or replays for good, and record it; then the messages that wait behind them may
-- go on. A replay is given up alone: its message was stored once, and can be replayed again.
-- $1: a lane; $2: ids; $3: operator; $4: note; $5: the kind that each must still be, as $8 of
-- list_parked.sql.
-- Index: parked_pkey, replay_pkey, message_pkey. Locking: the lane is locked by lock_lane.sql.
WITH gone AS (
  DELETE FROM {schema}.parked AS p
  WHERE p.lane = $1
    AND p.id = ANY ($2)
    AND CASE $5::text
      WHEN 'dead' THEN p.dead_at IS NOT NULL
      WHEN 'parked' THEN p.dead_at IS NULL AND p.replay = 0
      ELSE p.dead_at IS NULL AND p.replay > 0
    END
  RETURNING p.lane, p.id, p.error, p.replay
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
SELECT $3, $4, CASE g.replay WHEN 0 THEN 'discard' ELSE 'cancel' END, g.lane, g.id, m.key, m.subject, g.error
FROM gone AS g
JOIN {schema}.message AS m ON m.lane = g.lane AND m.id = g.id
