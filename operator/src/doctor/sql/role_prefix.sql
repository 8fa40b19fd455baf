-- The prefix of this database's role names, found from the roles that may use the schema: every
-- role can read that.
-- $1: the schema. Index: those of the catalogs. Locking: none.
SELECT left(r.rolname, -length('_relay')) AS role_prefix
FROM pg_namespace AS s
CROSS JOIN LATERAL aclexplode(s.nspacl) AS a
JOIN pg_roles AS r ON r.oid = a.grantee
WHERE s.nspname = $1 AND r.rolname LIKE '%\_relay'
ORDER BY length(r.rolname) DESC
LIMIT 1
