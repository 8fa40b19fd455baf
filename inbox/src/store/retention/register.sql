-- Say that this consumer, or HTTP route, exists, and how long it keeps its keys and its dead letters.
-- $1 scope; $2 retention in seconds, or NULL for ever; $3 the same for dead letters; $4 kind.
-- Index: inbox_scope_pkey. Locking: the row, for this statement; nothing is written where nothing has changed.
INSERT INTO {schema}.inbox_scope AS s (scope, retention_seconds, dead_letter_seconds, kind)
VALUES ($1::text, $2::double precision, $3::double precision, $4::text)
ON CONFLICT ON CONSTRAINT inbox_scope_pkey DO UPDATE
SET retention_seconds = excluded.retention_seconds,
    dead_letter_seconds = excluded.dead_letter_seconds,
    kind = excluded.kind,
    registered_at = excluded.registered_at
WHERE (s.retention_seconds, s.dead_letter_seconds, s.kind)
  IS DISTINCT FROM (excluded.retention_seconds, excluded.dead_letter_seconds, excluded.kind)
