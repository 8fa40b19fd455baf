-- Tables outside the outbox that this role can read, the first few by name, with how many there
-- are; not those of PostgreSQL and of extensions.
-- $1: the schema of the outbox; $2: names at most. Index: those of the catalogs. Locking: none.
SELECT count(*) OVER () AS tables, s.nspname || '.' || c.relname AS name
FROM pg_class AS c
JOIN pg_namespace AS s ON s.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND s.nspname <> $1
  AND s.nspname <> 'information_schema'
  AND s.nspname NOT LIKE 'pg\_%'
  AND has_schema_privilege(s.oid, 'USAGE')
  AND has_any_column_privilege(c.oid, 'SELECT')
  AND NOT EXISTS (
    SELECT
    FROM pg_depend AS d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
  )
ORDER BY s.nspname, c.relname
LIMIT $2
