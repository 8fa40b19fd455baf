-- Record that rows of inboxes were deleted by hand.
-- $1: operator; $2: note; $3: how many; $4: which kind of rows. Index: none. Locking: none.
SELECT {schema}.record_action('prune', $1, $2, $3, $4)
