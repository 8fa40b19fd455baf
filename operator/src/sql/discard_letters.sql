-- Delete dead letters, and record it. Their keys stay settled as dead.
-- $1: ids; $2: operator; $3: note.
-- Index: dead_letter_pkey. Locking: the rows until the end of the transaction; another operator
--   waits and finds none.
WITH gone AS (
  DELETE FROM {schema}.dead_letter
  WHERE id = ANY ($1)
  RETURNING id, scope, key, subject, reason
)
INSERT INTO {schema}.audit (operator, note, action, message_id, scope, key, subject, reason)
SELECT $2, $3, 'discard', g.id, g.scope, g.key, g.subject, g.reason
FROM gone AS g
