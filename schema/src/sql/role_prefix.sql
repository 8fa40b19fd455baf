-- The beginning of role names: the prefix in $1, or in a fresh installation schema and database, or
-- the prefix as it is.
-- $1: the wanted prefix, or NULL; $2: whether the installation is fresh. A database's name that is
-- no part of a role's as it stands, or too long, is mended, and made unique again by a hash. The
-- suffixes have 9 bytes at most, a name 63.
-- Index: none; one row. Locking: that row.
UPDATE {schema}.installation AS i
SET role_prefix = coalesce($1, CASE WHEN $2 THEN '{name}_' || d.own END, i.role_prefix)
FROM (
  SELECT CASE
    WHEN c.name COLLATE "C" ~ '^[a-z0-9_]+$' AND length('{name}_' || c.name) <= 54 THEN c.name
    ELSE left(regexp_replace(lower(c.name), '[^a-z0-9_]', '_', 'g'), 54 - length('{name}__') - 8) || '_' || left(md5(c.name), 8)
  END AS own
  FROM (SELECT current_database()::text AS name) AS c
) AS d
RETURNING i.role_prefix
