-- Say that this consumer exists, and how long it keeps its keys.
-- $1 scope; $2 retention in seconds, or NULL for ever.
-- Index: inbox_scope_pkey. Locking: the row, for this statement; nothing is written where nothing has changed.
INSERT INTO {schema}.inbox_scope AS s (scope, retention_seconds)
VALUES ($1::text, $2::double precision)
ON CONFLICT ON CONSTRAINT inbox_scope_pkey DO UPDATE
SET retention_seconds = excluded.retention_seconds,
    registered_at = excluded.registered_at
WHERE s.retention_seconds IS DISTINCT FROM excluded.retention_seconds
