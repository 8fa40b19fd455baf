-- Say that this consumer, or HTTP route, exists, how it claims its keys, and how long it keeps them
-- and its dead letters.
-- $1 scope; $2 retention in seconds, or NULL for ever; $3 the same for dead letters; $4 kind; $5
-- mode.
-- Index: inbox_scope_pkey. Locking: the row, for this statement. Of two that register the scope for
-- the first time, in two modes, the second waits for the first. Returns whether the stored settings
-- are these: they stay, since one process does not change how long another keeps its keys. No row:
-- the scope is in use in the other mode; nothing is changed then.
INSERT INTO {schema}.inbox_scope AS s (scope, retention_seconds, dead_letter_seconds, kind, mode)
VALUES ($1::text, $2::double precision, $3::double precision, $4::text, $5::text)
ON CONFLICT ON CONSTRAINT inbox_scope_pkey DO UPDATE
SET mode = excluded.mode
WHERE s.mode IS NULL OR s.mode = excluded.mode
RETURNING CASE
  WHEN (s.retention_seconds, s.dead_letter_seconds, s.kind)
    IS NOT DISTINCT FROM ($2::double precision, $3::double precision, $4::text)
  THEN 'registered'
  ELSE format('kind %s, retention %s, dead letters %s', s.kind, coalesce(s.retention_seconds || ' s', 'for ever'),
              coalesce(s.dead_letter_seconds || ' s', 'for ever'))
END
