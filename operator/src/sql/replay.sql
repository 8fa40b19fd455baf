-- Ask for settled messages to be sent again, each under the next number, and record it.
-- $1: a lane; $2: ids; $3: operator; $4: note; $5: name of the request. A replay takes the way of a
-- parked message, so it keeps the order of its ordering key, and later messages wait behind it. One
-- that is still to be sent, or dead, gets the next number and is sent once. Of an ordering key only
-- the first gets a due time, as in retry.sql.
-- Index: message_pkey, late_receipt_pkey, discarded_pkey, parked_pkey, replay_pkey. Locking: the maintenance row (so
-- no message is deleted meanwhile) and the lane are locked by lock_maintenance.sql and
-- lock_lane.sql.
WITH wanted AS MATERIALIZED (
  SELECT m.lane, m.id, m.turn, m.key, m.subject, m.ordering_key, m.headers, m.payload, m.created_at
  FROM {schema}.message AS m
  WHERE m.lane = $1
    AND m.id = ANY ($2)
    AND NOT EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = m.lane AND p.id = m.id AND p.replay = 0
      OFFSET 0
    )
    AND NOT EXISTS (
      SELECT FROM {schema}.discarded AS d
      WHERE d.lane = m.lane AND d.id = m.id
      OFFSET 0
    )
),
numbered AS (
  INSERT INTO {schema}.replay AS r (lane, id, number, request)
  SELECT w.lane, w.id, 1, $5
  FROM wanted AS w
  ORDER BY w.id
  ON CONFLICT ON CONSTRAINT replay_pkey DO UPDATE
  SET
    number = r.number + 1,
    request = excluded.request,
    requested_at = excluded.requested_at,
    turn = excluded.turn
  WHERE r.request <> excluded.request
  RETURNING r.lane, r.id, r.number
),
placed AS (
  SELECT w.*, n.number, row_number() OVER (PARTITION BY w.ordering_key ORDER BY w.id) AS place
  FROM numbered AS n
  JOIN wanted AS w ON w.lane = n.lane AND w.id = n.id
),
requested AS (
  INSERT INTO {schema}.parked AS p (
    lane, id, turn, ordering_key, attempts, next_attempt_at, error, cause, replay, key, subject, headers, payload, created_at
  )
  SELECT
    w.lane,
    w.id,
    w.turn,
    w.ordering_key,
    0,
    CASE WHEN w.place = 1 OR w.ordering_key IS NULL THEN clock_timestamp() END,
    'to be replayed',
    'replay',
    w.number,
    w.key,
    w.subject,
    w.headers,
    w.payload,
    w.created_at
  FROM placed AS w
  ORDER BY w.id
  ON CONFLICT ON CONSTRAINT parked_pkey DO UPDATE
  SET
    attempts = 0,
    next_attempt_at = excluded.next_attempt_at,
    dead_at = NULL,
    error = excluded.error,
    cause = excluded.cause,
    replay = excluded.replay,
    parked_at = excluded.parked_at
)
INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
SELECT $3, $4, 'replay', w.lane, w.id, w.key, w.subject, $5
FROM placed AS w
