-- The bytes of all tables beside the two of the shop, with their indexes. No parameters.
SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0)::bigint
FROM pg_class
JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind = 'r'
  AND nspname NOT IN ('pg_catalog', 'information_schema')
  AND relname NOT IN ('orders', 'effect')
