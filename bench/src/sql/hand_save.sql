-- Where a saga of one's own stands. $1 its id, $2 state. Index: hand_saga_pkey. Locking: the row.
UPDATE hand_saga
SET state = $2, revision = revision + 1, changed_at = clock_timestamp()
WHERE id = $1
