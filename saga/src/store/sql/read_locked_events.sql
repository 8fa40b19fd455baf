-- Read the events that wait for the saga that was locked just now; sent as read_locked_steps.sql
-- is.
-- $1: its key. Index: saga_event_key. Locking: none beyond the saga's row.
SELECT e.id, e.key, e.kind, e.step, e.attempt, e.is_undo, e.payload, e.scope, e.reason
FROM {schema}.saga_event AS e
WHERE e.key = $1::text
ORDER BY e.id
