-- Which of these keys an inbox of this database has.
-- $1: the scope; $2: the keys. Index: inbox_pkey, for each tenant and key. Locking: none.
SELECT k.key
FROM {schema}.arrived_keys($1::text, $2::text[]) AS k (key)
