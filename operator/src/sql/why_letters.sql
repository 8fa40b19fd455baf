-- The dead letters of some keys, of each key the newest first.
-- $1: the keys; $2: letters at most. Index: dead_letter_key. Locking: none.
SELECT d.key, d.scope, d.tenant, d.deliveries, d.reason
FROM {schema}.dead_letter AS d
WHERE d.key = ANY ($1::text[])
ORDER BY d.key, d.id DESC
LIMIT $2
