-- Forget a failing message that its stream has no more, so that nobody delivers it again, and
-- record it.
-- $1: scope; $2: tenant; $3: key; $4: copy; $5: operator; $6: note.
-- Index: inbox_attempt_pkey. Locking: the row until the end of the statement.
WITH gone AS (
  DELETE FROM {schema}.inbox_attempt AS a
  WHERE a.scope = $1
    AND a.tenant = $2
    AND a.key = $3
    AND a.message = $4
  RETURNING a.scope, a.key, a.subject, a.reason
)
INSERT INTO {schema}.audit (operator, note, action, scope, key, subject, reason)
SELECT $5, $6, 'bury', g.scope, g.key, g.subject, g.reason
FROM gone AS g
