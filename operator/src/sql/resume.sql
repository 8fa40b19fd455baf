-- End a pause, or a throttle, and record it.
-- $1: kind; $2: value; $3: operator; $4: note. Index: pause_pkey. Locking: the pause.
WITH resumed AS (
  DELETE FROM {schema}.pause
  WHERE kind = $1 AND value = $2
  RETURNING kind, value, ends_at
)
INSERT INTO {schema}.audit (operator, note, action, reason)
SELECT $3, $4, 'resume', concat_ws(' ', r.kind, r.value)
FROM resumed AS r
WHERE r.ends_at > clock_timestamp()
