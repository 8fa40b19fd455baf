-- Where the message with a key is, when it is in the log: lane -1 has the placeholders of delayed
-- ones.
-- $1: the key. Index: message_key_unique. Locking: none.
SELECT m.lane, m.id
FROM {schema}.message AS m
WHERE m.key = $1 AND m.lane >= 0
