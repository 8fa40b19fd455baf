-- The settings of scopes, by their names.
-- $1: after this scope; $2: scopes at most. Index: inbox_scope_pkey. Locking: none.
SELECT scope, kind, mode, retention_seconds, dead_letter_seconds, registered_at
FROM {schema}.inbox_scope
WHERE scope > $1
ORDER BY scope
LIMIT $2
