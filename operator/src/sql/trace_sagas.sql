-- The keys of the sagas with this key, and of those below it, as trace.sql finds messages.
-- $1: the key; $2: sagas at most. Index: saga_key_unique. Locking: none.
SELECT s.key::text AS key
FROM {schema}.saga AS s
WHERE s.key = $1::text OR s.key > $1::text || ':' AND s.key < $1::text || ';'
ORDER BY s.key
LIMIT $2
