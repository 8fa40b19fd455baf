-- Make dead messages due again, with their attempts forgotten, and record it.
-- $1: a lane; $2: ids; $3: operator; $4: note. Of an ordering key only the first gets a due time:
-- the others follow it. Should another message stand before it, the relay sees that
-- (read_parked.sql).
-- Index: parked_pkey. Locking: the lane is locked by lock_lane.sql.
WITH retried AS (
  UPDATE {schema}.parked AS p
  SET
    attempts = 0,
    dead_at = NULL,
    next_attempt_at = CASE WHEN d.place = 1 OR d.ordering_key IS NULL THEN clock_timestamp() END
  FROM (
    SELECT q.lane, q.id, q.ordering_key, row_number() OVER (PARTITION BY q.ordering_key ORDER BY q.id) AS place
    FROM {schema}.parked AS q
    WHERE q.lane = $1 AND q.id = ANY ($2) AND q.dead_at IS NOT NULL
  ) AS d
  WHERE p.lane = d.lane AND p.id = d.id
  RETURNING p.lane, p.id, p.key, p.subject, p.error
)
INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
SELECT $3, $4, 'retry', r.lane, r.id, r.key, r.subject, r.error
FROM retried AS r
