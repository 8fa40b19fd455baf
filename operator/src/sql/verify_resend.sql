-- Park messages that a stream does not hold, or holds otherwise, so that they are sent again under
-- their ids. Of an ordering key only the first gets a due time, as in retry.sql: so they keep their
-- order among themselves, and unsent messages wait behind them.
-- $1: a lane; $2: ids. A message that became parked or discarded, or is due by itself since its
-- lane went back, is left alone.
-- Index: message_pkey, cursor_pkey, parked_pkey, discarded_pkey. Locking: the maintenance row (so
-- no message is deleted meanwhile) and the lane are locked by lock_maintenance.sql and
-- lock_lane.sql.
INSERT INTO {schema}.parked (
  lane, id, turn, ordering_key, attempts, next_attempt_at, error, cause, key, subject, headers, payload, created_at
)
SELECT
  m.lane,
  m.id,
  m.turn,
  m.ordering_key,
  0,
  CASE WHEN m.ordering_key IS NULL OR row_number() OVER (PARTITION BY m.ordering_key ORDER BY m.id) = 1
    THEN clock_timestamp() END,
  'the stream does not hold it, or holds it otherwise',
  'lost',
  m.key,
  m.subject,
  m.headers,
  m.payload,
  m.created_at
FROM {schema}.message AS m
JOIN {schema}.lane_cursor AS c ON c.lane = m.lane
WHERE m.lane = $1
  AND m.id = ANY ($2::bigint[])
  AND (m.id <= c.floor OR m.id <= c.high AND c.reset_until IS NULL AND pg_visible_in_snapshot(m.xact, c.snap))
  AND NOT EXISTS (
    SELECT FROM {schema}.discarded AS d
    WHERE d.lane = m.lane AND d.id = m.id
    OFFSET 0
  )
ON CONFLICT ON CONSTRAINT parked_pkey DO NOTHING
