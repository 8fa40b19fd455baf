-- Give up messages or replays for good, and record it; then the messages that wait for them may go
-- on: 0014_actions.sql has the function.
-- $1: a lane; $2: ids; $3: the kind that each must still be, as $8 of list_parked.sql; $4:
-- operator; $5: note. Index: those of the function. Locking: the lane, as in retry.sql.
SELECT id FROM {schema}.give_up_parked($1, $2, $4, $5, $3) AS t (id)
