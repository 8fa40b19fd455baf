-- The settings of a scope. $1: its name. Index: inbox_scope_pkey. Locking: none.
SELECT scope, kind, mode, retention_seconds, dead_letter_seconds, registered_at
FROM {schema}.inbox_scope
WHERE scope = $1
