-- Pause messages, or throttle them, and record it. An earlier pause of the same was deleted before.
-- $1: kind; $2: value; $3: messages a second, NULL = none; $4: patterns of subjects; $5: ordering
-- key; $6: operator; $7: note; $8: end, NULL = none; $9: seconds to the end, NULL = see $8. No row,
-- and nothing done, when the end is in the past. Index: pause_pkey. Locking: none.
WITH paused AS (
  INSERT INTO {schema}.pause (kind, value, rate, subjects, ordering_key, paused_by, reason, ends_at)
  SELECT $1, $2, $3, $4, $5, $6, $7, e.ends_at
  FROM (
    SELECT coalesce(clock_timestamp() + make_interval(secs => $9::double precision), $8::timestamptz, 'infinity') AS ends_at
  ) AS e
  WHERE e.ends_at > clock_timestamp()
  RETURNING kind, value, rate, ends_at
),
recorded AS (
  INSERT INTO {schema}.audit (operator, note, action, reason)
  SELECT $6, $7, CASE WHEN p.rate IS NULL THEN 'pause' ELSE 'throttle' END, concat_ws(' ', p.kind, p.value)
  FROM paused AS p
)
SELECT nullif(p.ends_at, 'infinity') AS ends_at
FROM paused AS p
