-- Which of some roles do not exist, in the order given. A migrating user who may not create roles
-- leaves them out.
-- $1: their names. Index: those of the catalogs. Locking: none.
SELECT wanted.name
FROM unnest($1::text[]) WITH ORDINALITY AS wanted (name, number)
WHERE NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = wanted.name)
ORDER BY wanted.number
