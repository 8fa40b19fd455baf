-- Say that this consumer, or HTTP route, exists, how it claims its keys, and how long it keeps them
-- and its dead letters.
-- $1 scope; $2 retention in seconds, or NULL for ever; $3 the same for dead letters; $4 kind; $5
-- mode.
-- Index: inbox_scope_pkey. Locking: the row, for this statement. Of two that register the scope for
-- the first time, in two modes, the second waits for the first. No row: the scope is in use in the
-- other mode; nothing is changed then.
INSERT INTO {schema}.inbox_scope AS s (scope, retention_seconds, dead_letter_seconds, kind, mode)
VALUES ($1::text, $2::double precision, $3::double precision, $4::text, $5::text)
ON CONFLICT ON CONSTRAINT inbox_scope_pkey DO UPDATE
SET retention_seconds = excluded.retention_seconds,
    dead_letter_seconds = excluded.dead_letter_seconds,
    kind = excluded.kind,
    mode = excluded.mode,
    registered_at = CASE
      WHEN (s.retention_seconds, s.dead_letter_seconds, s.kind)
        IS DISTINCT FROM (excluded.retention_seconds, excluded.dead_letter_seconds, excluded.kind)
      THEN excluded.registered_at
      ELSE s.registered_at
    END
WHERE s.mode IS NULL OR s.mode = excluded.mode
RETURNING 'registered'
