-- A step of a saga of one's own is done. $1 saga, $2 step. Index: hand_step_pkey. Locking: the row.
UPDATE hand_step
SET state = 'done', answered_at = clock_timestamp()
WHERE saga_id = $1 AND step = $2
