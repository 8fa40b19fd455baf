-- Forget a failing message that its stream has no more, so that it is not delivered again, and
-- record it.
-- $1: scope; $2: tenant; $3: key; $4: copy; $5: operator; $6: note. Index: inbox_attempt_pkey.
-- Locking: the row until the end of the statement.
SELECT id FROM {schema}.forget_failing($1, $2, $3, $4, $5, $6) AS t (id)
