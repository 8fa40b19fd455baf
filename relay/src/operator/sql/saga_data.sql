-- The data of a saga, as text. $1: its id. Index: saga_pkey. Locking: none.
SELECT s.data::text AS data
FROM {schema}.saga AS s
WHERE s.id = $1
