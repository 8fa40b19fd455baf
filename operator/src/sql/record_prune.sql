-- Record that messages were deleted by hand. $1: operator; $2: note; $3: how many; $4: the
-- retention time as it was given. Index: none. Locking: none.
SELECT {schema}.record_action('prune', $1, $2, $3, $4)
