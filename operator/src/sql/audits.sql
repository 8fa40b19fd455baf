-- Actions of operators, the newest first.
-- $1: before this id; $2: rows at most. Index: audit_pkey, backwards; kept_pkey. Locking: none.
SELECT
  a.id,
  a.happened_at,
  a.database_user,
  a.operator,
  a.note,
  a.action,
  a.key,
  a.reason,
  EXISTS (SELECT FROM {schema}.kept AS k WHERE k.audit = a.id) AS can_undo
FROM {schema}.audit AS a
WHERE a.id < $1
ORDER BY a.id DESC
LIMIT $2
