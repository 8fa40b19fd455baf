-- The newest migration, and the oldest program that works with it; no row when nothing is
-- installed. Index: migration_pkey. Locking: none.
SELECT m.version::text, m.oldest_program::text
FROM {schema}.migration AS m
ORDER BY m.version DESC
LIMIT 1
