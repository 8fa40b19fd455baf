-- A step of a saga of one's own is sent. $1 saga, $2 step, $3 payload. Locks nothing that others
-- want.
INSERT INTO hand_step (saga_id, step, state, payload)
VALUES ($1, $2, 'sent', $3)
