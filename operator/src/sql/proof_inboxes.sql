-- The inboxes of this database, each of a consumer's scope and a tenant, and how long they keep
-- keys.
-- $1: inboxes at most. Index: inbox_pkey, from one scope and tenant to the next. Locking: none.
SELECT p.scope, p.tenant, s.retention_seconds
FROM {schema}.inbox_places($1::integer) AS p
JOIN {schema}.inbox_scope AS s ON s.scope = p.scope AND s.kind = 'consumer'
ORDER BY p.scope, p.tenant
