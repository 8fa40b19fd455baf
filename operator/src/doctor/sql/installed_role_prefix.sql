-- The prefix of this database's role names, as the migration wrote it down.
-- Index: none; one row. Locking: none.
SELECT i.role_prefix
FROM {schema}.installation AS i
