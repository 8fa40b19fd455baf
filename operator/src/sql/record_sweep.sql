-- Record that rows of inboxes were deleted by hand.
-- $1: operator; $2: note; $3: how many; $4: which kind of rows. Index: none. Locking: none.
INSERT INTO {schema}.audit (operator, note, action, messages, reason)
VALUES ($1, $2, 'prune', $3, $4)
