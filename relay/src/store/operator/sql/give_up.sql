-- Give up dead messages for good, and record it; then what waits behind them may go on. A replay of a message that was
-- stored once is given up alone.
-- $1: a lane; $2: ids; $3: operator; $4: note.
-- Index: parked_pkey, message_pkey. Locking: the lane is locked by lock_lane.sql.
WITH gone AS (
  DELETE FROM {schema}.parked AS p
  WHERE p.lane = $1 AND p.id = ANY ($2) AND p.dead_at IS NOT NULL
  RETURNING p.lane, p.id, p.error, p.replay
),
noted AS (
  INSERT INTO {schema}.discarded (lane, id)
  SELECT g.lane, g.id
  FROM gone AS g
  WHERE g.replay = 0
)
INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
SELECT $3, $4, 'discard', g.lane, g.id, m.key, m.subject, g.error
FROM gone AS g
JOIN {schema}.message AS m ON m.lane = g.lane AND m.id = g.id
