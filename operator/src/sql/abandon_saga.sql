-- Give a saga up as it stands, and record it; no row where it has finished meanwhile.
-- Columns are those of retry_saga.sql.
-- $1: its id; $2: why, for the saga's row; $3: operator; $4: note.
-- Index: saga_pkey, inside the function. Locking: the saga's row.
WITH abandoned AS MATERIALIZED (
  SELECT s.type, s.key, {schema}.abandon_saga(s.id, $2::text) AS is_done
  FROM {schema}.saga AS s
  WHERE s.id = $1
)
INSERT INTO {schema}.audit (operator, note, action, scope, key)
SELECT $3, $4, 'abandon', a.type, a.key
FROM abandoned AS a
WHERE a.is_done
RETURNING NULL::text AS command, NULL::boolean AS is_discarded
