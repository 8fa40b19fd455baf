-- Have kinds of events sent no more, and record it. Returns those that were sent before.
-- $1: kinds; $2: operator; $3: note. Index: event_kind_pkey. Locking: the kinds.
WITH disabled AS (
  DELETE FROM {schema}.event_kind
  WHERE kind = ANY ($1::text[])
  RETURNING kind
),
recorded AS (
  INSERT INTO {schema}.audit (operator, note, action, reason)
  SELECT $2, $3, 'disable-events', string_agg(d.kind, ' ' ORDER BY d.kind)
  FROM disabled AS d
  HAVING count(*) > 0
)
SELECT kind
FROM disabled
ORDER BY kind
