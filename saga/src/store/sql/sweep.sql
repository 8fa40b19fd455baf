-- Delete sagas that finished long ago, and answers for which no saga came.
-- $1: how many seconds finished sagas are kept, or NULL for ever; $2: how many seconds answers are
-- kept; $3: rows at most, of each; $4: how many of the newest answers may be kept. Returns how many
-- of each. Index: saga_finished_at inside the function, saga_event_orphan. Locking: the rows, with
-- SKIP LOCKED.
WITH old AS (
  SELECT e.id
  FROM {schema}.saga_event AS e
  WHERE e.is_orphan
    AND e.created_at < greatest(clock_timestamp() - make_interval(secs => $2), (
      SELECT n.created_at
      FROM {schema}.saga_event AS n
      WHERE n.is_orphan
      ORDER BY n.created_at DESC
      OFFSET $4 - 1
      LIMIT 1
    ))
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
