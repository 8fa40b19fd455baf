-- Sagas about a business object, of any type.
-- $1: its id; $2: sagas at most. Index: saga_business_id_unique, once for each type that is
-- registered. Locking: none.
SELECT s.key::text AS key
FROM (SELECT DISTINCT d.type FROM {schema}.saga_definition AS d) AS t
CROSS JOIN LATERAL (
  SELECT o.key
  FROM {schema}.saga AS o
  WHERE o.type = t.type AND o.business_id = $1::text
  OFFSET 0
) AS s
ORDER BY s.key
LIMIT $2
