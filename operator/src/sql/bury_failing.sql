-- Give a failing message up, whole, and record it. Returns how its key stands then: dead, or the
-- state that forbids it; incomplete when its payload is gone, and no claim has its fingerprint: a
-- later copy would be another message under the same key.
-- $1: scope; $2: tenant; $3: key; $4: payload; $5: subject; $6: headers as JSON; $7: stream; $8:
-- sequence in it; $9: when the stream stored it; $10: failures; $11: reason; $12: whether the
-- payload is gone; $13: operator; $14: note.
-- Index: inbox_scope_pkey, and those of the function. Locking: the key's advisory lock, tried
-- without waiting: a message at work is left alone.
SELECT
  CASE
    WHEN $12 AND NOT EXISTS (SELECT FROM {schema}.inbox_scope AS s WHERE s.scope = $1 AND s.mode = 'lease')
      THEN 'incomplete'
    ELSE {schema}.bury_failing($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10, $11, $13, $14)
  END AS answer
