-- Park every message of the database, after some attempts, and move the cursors past them. No
-- parameters. Locks nothing that another session wants yet. Indexes: those of a join of two whole
-- tables.
WITH parked AS (
  INSERT INTO {schema}.parked (lane, id, attempts, next_attempt_at, error)
  SELECT m.lane, m.id, 5, clock_timestamp(), 'no stream takes the subject'
  FROM {schema}.message AS m
)
UPDATE {schema}.cursor AS c
SET snap = pg_current_snapshot(),
    high = greatest(c.high, (SELECT max(m.id) FROM {schema}.message AS m WHERE m.lane = c.lane))
