-- Find answers that came before their saga was committed, and make it due, so that a process looks
-- at it; those whose saga has finished without them are deleted.
-- $1: how many at most. Returns how many. Index: saga_event_orphan, saga_key_unique.
-- Locking: the events and their sagas; those that others have are skipped.
WITH found AS MATERIALIZED (
  SELECT e.id, s.id AS saga_id, s.finished_at IS NOT NULL AS is_finished
  FROM {schema}.saga_event AS e
  JOIN {schema}.saga AS s ON s.key = e.key
  WHERE e.is_orphan
  ORDER BY e.created_at
  LIMIT $1
  FOR UPDATE SKIP LOCKED
),
adopted AS (
  UPDATE {schema}.saga_event AS e
  SET is_orphan = false
  FROM found AS f
  WHERE e.id = f.id AND NOT f.is_finished
),
deleted AS (
  DELETE FROM {schema}.saga_event AS e
  USING found AS f
  WHERE e.id = f.id AND f.is_finished
),
woken AS (
  UPDATE {schema}.saga AS s
  SET due_at = clock_timestamp()
  WHERE s.id IN (SELECT f.saga_id FROM found AS f) AND s.finished_at IS NULL AND s.state <> 'quarantined'
)
SELECT count(*) FROM found
