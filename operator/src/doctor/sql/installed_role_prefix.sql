-- What the names of this database's roles begin with, as the migration wrote it down.
-- Index: none; one row. Locking: none.
SELECT i.role_prefix
FROM {schema}.installation AS i
