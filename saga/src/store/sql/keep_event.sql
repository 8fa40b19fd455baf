-- Keep an answer that cannot be applied yet.
-- $1: key of the saga; $2: whether no saga has this key; $3: kind; $4: step; $5: attempt; $6:
-- whether it answers a compensation; $7: payload; $8: the scope that it comes from, or NULL; $9: of
-- a death the reason, else NULL. Locking: none.
INSERT INTO {schema}.saga_event (key, is_orphan, kind, step, attempt, is_undo, payload, scope, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, left($9, 250))
