-- The graphs that orchestrators had when they started, the newest version first. Where a version
-- was registered with several graphs, the one that was registered last comes first.
-- $1: a type, or NULL for all; $2: a version, or NULL; $3: rows at most. Index: none: there is a
-- row for each graph that ever was. Locking: none.
SELECT d.type::text AS type, d.version, d.registered_at, d.graph::text AS graph
FROM {schema}.saga_definition AS d
WHERE ($1::text IS NULL OR d.type = $1::text) AND ($2::integer IS NULL OR d.version = $2::integer)
ORDER BY d.type, d.version DESC, d.registered_at DESC
LIMIT $3
