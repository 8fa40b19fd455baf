-- Canaries, the newest first.
-- $1: rows at most. Index: canary_pkey, backwards. Locking: none.
SELECT
  k.id,
  k.kind,
  k.state,
  k.selected,
  k.selected - k.watched - k.good - k.failed - k.skipped AS waiting,
  k.watched,
  k.good,
  k.failed,
  k.skipped,
  k.reason,
  k.fault,
  k.database_user,
  k.operator,
  k.note,
  k.began_at,
  k.ended_at
FROM {schema}.canary AS k
ORDER BY k.id DESC
LIMIT $1
