-- Read the events that wait for sagas that are due and locked.
-- $1: keys of the sagas. Index: saga_event_key. Locking: none beyond the sagas' rows.
SELECT e.id, e.key, e.kind, e.step, e.attempt, e.is_undo, e.payload, e.scope, e.reason
FROM {schema}.saga_event AS e
WHERE e.key = ANY ($1)
ORDER BY e.id
