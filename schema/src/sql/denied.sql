-- This user's name, and the beginning of the names of the roles that may use the schema, for an
-- error that names the role to grant; NULL when there are no such roles. Every user can read this.
-- Index: those of the catalogs. Locking: none.
SELECT
  current_user::text AS user_name,
  (
    SELECT left(r.rolname, -length('_relay'))::text
    FROM pg_namespace AS s
    CROSS JOIN LATERAL aclexplode(s.nspacl) AS a
    JOIN pg_roles AS r ON r.oid = a.grantee
    WHERE s.nspname = '{name}' AND r.rolname LIKE '%\_relay'
    ORDER BY length(r.rolname) DESC
    LIMIT 1
  ) AS role_prefix
