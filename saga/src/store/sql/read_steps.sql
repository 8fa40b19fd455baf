-- Read the steps of sagas that are due and locked.
-- $1: ids of the sagas. Index: saga_step_pkey. Locking: none beyond the sagas' rows.
SELECT t.saga_id, t.step, t.state, t.attempt, t.undo_attempt, t.in_doubt, t.subject, t.payload, t.undo_subject,
       t.undo_payload, t.reason, (extract(epoch FROM t.deadline_at) - extract(epoch FROM clock_timestamp()))::float8 AS late_in
FROM {schema}.saga_step AS t
WHERE t.saga_id = ANY ($1)
