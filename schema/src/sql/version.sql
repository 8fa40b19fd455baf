-- The newest migration, and the oldest program that works with it; no row when nothing is
-- installed. By way of JSON, since before version 14 the table has no such column. Index:
-- migration_pkey. Locking: none.
SELECT m.version, (to_jsonb(m) ->> 'oldest_program')::int
FROM {schema}.migration AS m
ORDER BY m.version DESC
LIMIT 1
