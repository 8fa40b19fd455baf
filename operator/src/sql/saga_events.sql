-- Events that wait to be applied to a saga: early answers, and requests of operators.
-- $1: the saga's key; $2: rows at most. Index: saga_event_key. Locking: none.
SELECT e.kind, e.step::text AS step, e.is_undo, e.created_at
FROM {schema}.saga_event AS e
WHERE e.key = $1
ORDER BY e.id
LIMIT $2
