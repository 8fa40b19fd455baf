-- Let the deadline of a command pass whose answer is awaited. $1 the command's key. Index:
-- saga_key_unique, saga_step_pkey. Locking: the rows, until this commits.
WITH command AS (
  SELECT s.id, t.step, right($1::text, 5) = ':undo' AS is_undo
  FROM {schema}.saga AS s
  JOIN {schema}.saga_step AS t ON t.saga_id = s.id
  WHERE left($1::text, length(s.key || ':' || t.step)) = s.key || ':' || t.step
    AND substr($1::text, length(s.key || ':' || t.step) + 1) ~ '^(:#\d+)?(:undo)?$'
),
passed AS (
  UPDATE {schema}.saga_step AS t
  SET deadline_at = clock_timestamp() - interval '1 second'
  FROM command AS c
  WHERE t.saga_id = c.id AND t.step = c.step AND t.state = CASE WHEN c.is_undo THEN 'undoing' ELSE 'sent' END
  RETURNING t.saga_id
)
UPDATE {schema}.saga AS s
SET due_at = clock_timestamp()
FROM passed AS p
WHERE s.id = p.saga_id
