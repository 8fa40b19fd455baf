-- Ask for settled messages to be sent again, each under the next number, and record it:
-- 0014_actions.sql has the function.
-- $1: a lane; $2: ids; $3: name of the request; $4: operator; $5: note. Index: those of the
-- function. Locking: the maintenance row, then the lane.
SELECT id FROM {schema}.replay_messages($1, $2, $4, $5, $3) AS t (id)
