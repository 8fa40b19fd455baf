-- Inboxes of this database that forget keys, the most forgetful first; not HTTP routes, whose keys
-- no stream sends again.
-- $1: inboxes at most.
-- Index: none; a row for each consumer. Locking: none.
SELECT s.scope::text, s.retention_seconds
FROM {schema}.inbox_scope AS s
WHERE s.retention_seconds IS NOT NULL
  AND s.kind = 'consumer'
ORDER BY s.retention_seconds, s.scope
LIMIT $1
