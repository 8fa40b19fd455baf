-- Ask for a new attempt at what waits in a saga, and record it: a row for each step; one for a saga
-- in quarantine, which is read again.
-- $1: its id; $2: a step, NULL for all that wait; $3: operator; $4: note.
-- Index: saga_pkey, saga_step_pkey, inside the function. Locking: the saga's row. Error OB009 when
-- nothing waits any more.
WITH asked AS MATERIALIZED (
  SELECT s.type, s.key, {schema}.retry_saga(s.id, $2::text) AS steps
  FROM {schema}.saga AS s
  WHERE s.id = $1
)
INSERT INTO {schema}.audit (operator, note, action, scope, key, reason)
SELECT $3, $4, 'retry', a.type, a.key, t.step
FROM asked AS a
LEFT JOIN LATERAL unnest(a.steps) AS t (step) ON true
