-- The last row in the audit of what a command discarded. $1: the command. Index: audit_discards.
-- Locking: none.
SELECT max(a.id)
FROM {schema}.audit AS a
WHERE a.command = $1 AND a.action = 'discard'
