-- Read the steps of the saga that was locked just now.
-- $1: its key. Index: saga_key_unique, saga_step_pkey. Locking: none beyond the saga's row. It is
-- sent after lock.sql, without waiting for its answer. As a statement of its own it begins once
-- lock.sql has the lock, and sees the commit before it.
SELECT t.saga_id, t.step, t.state, t.attempt, t.undo_attempt, t.in_doubt, t.subject, t.payload, t.undo_subject,
       t.undo_payload, t.reason, (extract(epoch FROM t.deadline_at) - extract(epoch FROM clock_timestamp()))::float8 AS late_in
FROM {schema}.saga_step AS t
WHERE t.saga_id = (SELECT s.id FROM {schema}.saga AS s WHERE s.key = $1::text)
