-- Have a saga go on as if a step that waits were done, or undone, and record it. Columns are those
-- of retry_saga.sql.
-- $1: the saga's id; $2: the step; $3: operator; $4: note.
-- Index: saga_pkey, saga_step_pkey, inside the function. Locking: the saga's row. Error OB009 when
-- the step does not wait any more.
WITH asked AS MATERIALIZED (
  SELECT s.type, s.key, {schema}.skip_saga_step(s.id, $2::text) AS steps
  FROM {schema}.saga AS s
  WHERE s.id = $1
)
INSERT INTO {schema}.audit (operator, note, action, scope, key, reason)
SELECT $3, $4, 'skip', a.type, a.key, t.step
FROM asked AS a
CROSS JOIN LATERAL unnest(a.steps) AS t (step)
RETURNING NULL::text AS command, NULL::boolean AS is_discarded
