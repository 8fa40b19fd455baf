-- Where the newest message with a key is, when it is in the log: lane -1 has the placeholders of
-- delayed ones.
-- $1: the key; $2: a message that is set aside goes before a newer one that is not.
-- Index: message_key_unique, parked_pkey. Locking: none.
SELECT m.lane, m.id
FROM {schema}.message AS m
WHERE m.key = $1 AND m.lane >= 0
ORDER BY $2 AND EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = m.lane AND p.id = m.id) DESC, m.id DESC
LIMIT 1
