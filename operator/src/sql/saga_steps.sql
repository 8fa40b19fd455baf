-- The steps of sagas that were sent, in the order in which they were.
-- $1: ids of the sagas. Index: saga_step_pkey. Locking: none.
SELECT
  t.saga_id,
  t.step::text AS step,
  t.state,
  t.attempt,
  t.undo_attempt,
  t.subject,
  t.undo_subject,
  t.reason,
  t.deadline_at,
  t.sent_at,
  t.answered_at,
  t.undo_sent_at,
  t.undone_at
FROM {schema}.saga_step AS t
WHERE t.saga_id = ANY ($1)
ORDER BY t.saga_id, t.sent_at, t.step
