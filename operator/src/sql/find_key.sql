-- Where the newest message with a key is, when it is in the log: lane -1 has the placeholders of
-- delayed ones.
-- $1: the key; $2: a message that is set aside goes before a newer one that is not.
-- Index: message_key_unique, parked_key, parked_pkey. Locking: none.
WITH found AS MATERIALIZED (
  SELECT m.lane, m.id
  FROM {schema}.message AS m
  WHERE m.key = $1 AND m.lane >= 0
  UNION
  -- Whole by themselves, also where the log came without its rows.
  SELECT p.lane, p.id
  FROM {schema}.parked AS p
  WHERE p.key = $1
)
SELECT m.lane, m.id
FROM found AS m
ORDER BY $2 AND EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = m.lane AND p.id = m.id) DESC, m.id DESC
LIMIT 1
