-- Details of a saga that a list leaves out: its data, and the graph that it goes by, as text.
-- $1: its id; $2: whether its data is asked for. Index: saga_pkey, saga_definition_pkey.
-- Locking: none.
SELECT CASE WHEN $2 THEN s.data::text END AS data, d.graph::text AS graph
FROM {schema}.saga AS s
LEFT JOIN {schema}.saga_definition AS d ON d.fingerprint = s.fingerprint
WHERE s.id = $1
