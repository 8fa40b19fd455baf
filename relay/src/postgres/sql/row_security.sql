-- Tables of which policies may hide rows from this role, in the form of `integrity.sql`, which
-- cannot read them then.
-- $1: the schema. Index: those of the catalogs. Locking: none.
SELECT 'row-security' AS fault, string_agg(c.relname, ', ' ORDER BY c.relname) AS detail
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r' AND row_security_active(c.oid)
HAVING count(*) > 0
