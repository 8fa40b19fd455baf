-- Pause messages, or throttle them, and record it. An earlier pause of the same was deleted before.
-- $1: kind; $2: value; $3: messages a second, NULL = none; $4: patterns of subjects; $5: ordering
-- key; $6: operator; $7: note; $8: end, NULL = none. Index: pause_pkey. Locking: none.
WITH paused AS (
  INSERT INTO {schema}.pause (kind, value, rate, subjects, ordering_key, paused_by, reason, ends_at)
  VALUES ($1, $2, $3, $4, $5, $6, $7, coalesce($8::timestamptz, 'infinity'))
  RETURNING kind, value, rate
)
INSERT INTO {schema}.audit (operator, note, action, reason)
SELECT $6, $7, CASE WHEN p.rate IS NULL THEN 'pause' ELSE 'throttle' END, concat_ws(' ', p.kind, p.value)
FROM paused AS p
