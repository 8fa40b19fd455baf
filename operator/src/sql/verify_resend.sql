-- Park messages that a stream does not hold, or holds otherwise, so that they are sent again under
-- their ids, and record it: 0014_actions.sql has the function.
-- $1: a lane; $2: ids; $3: why; $4: operator; $5: note. Index: those of the function. Locking: the
-- maintenance row, then the lane.
SELECT id FROM {schema}.resend_missing($1, $2, $4, $5, $3) AS t (id)
