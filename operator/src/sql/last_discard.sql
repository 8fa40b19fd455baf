-- The last row in the audit of a message that a command discarded, or edited in the outbox. $1: the
-- command. Index: audit_discards.
-- Locking: none.
SELECT max(a.id)
FROM {schema}.audit AS a
WHERE a.command = $1 AND (a.action = 'discard' OR a.action = 'edit' AND a.scope IS NULL)
