-- Have kinds of events sent, and record it. Returns those that were not sent before.
-- $1: kinds; $2: operator; $3: note. Index: event_kind_pkey. Locking: none.
WITH enabled AS (
  INSERT INTO {schema}.event_kind (kind)
  SELECT unnest($1::text[])
  ON CONFLICT ON CONSTRAINT event_kind_pkey DO NOTHING
  RETURNING kind
),
recorded AS (
  INSERT INTO {schema}.audit (operator, note, action, reason)
  SELECT $2, $3, 'enable-events', string_agg(e.kind, ' ' ORDER BY e.kind)
  FROM enabled AS e
  HAVING count(*) > 0
)
SELECT kind
FROM enabled
ORDER BY kind
