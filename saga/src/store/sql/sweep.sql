-- Delete sagas that finished long ago, and answers for which no saga came.
-- $1: how many seconds finished sagas are kept, or NULL for ever; $2: how many seconds answers are
-- kept; $3: rows at most, of each. Returns how many of each. Index: saga_finished_at inside the
-- function, saga_event_orphan. Locking: the rows, with SKIP LOCKED.
WITH old AS (
  SELECT e.id
  FROM {schema}.saga_event AS e
  WHERE e.is_orphan AND e.created_at < clock_timestamp() - make_interval(secs => $2)
  ORDER BY e.created_at
  LIMIT $3
  FOR UPDATE SKIP LOCKED
),
deleted AS (
  DELETE FROM {schema}.saga_event AS e
  USING old AS o
  WHERE e.id = o.id
  RETURNING e.id
)
SELECT CASE WHEN $1::float8 IS NULL THEN 0 ELSE {schema}.sweep_sagas(make_interval(secs => $1), $3) END AS sagas,
       (SELECT count(*) FROM deleted) AS orphans
