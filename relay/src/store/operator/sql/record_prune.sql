-- Record that messages were deleted by hand.
-- $1: operator; $2: note; $3: the lane; $4: how many; $5: the retention time as it was given. Index: none. Locking: none.
INSERT INTO {schema}.audit (operator, note, action, lane, messages, reason)
VALUES ($1, $2, 'prune', $3, $4, $5)
