-- Where the message with a key is. $1: the key. Index: message_key_unique. Locking: none.
SELECT m.lane, m.id
FROM {schema}.message AS m
WHERE m.key = $1
