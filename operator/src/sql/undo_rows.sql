-- The rows that a discard took out, and why one of them cannot come back: 0025_undo.sql has the
-- function. $1: the id of one of its rows in the audit. Index: audit_pkey, audit_discards,
-- kept_pkey, and those of the tables that the rows came from. Locking: none.
SELECT audit_id, message_id, scope, key, subject, reason, obstacle
FROM {schema}.undo_rows($1)
