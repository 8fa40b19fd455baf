-- Send again the messages of a lane that a stream lost, and record it: 0014_actions.sql has the
-- function, 0005_receipts.sql its locks.
-- $1: the lane; $2: the stream; $3: from the milestone before this time on, NULL for
-- all of it; $4: operator; $5: note. Index: those of the function. Locking: the maintenance row,
-- then the lane.
SELECT messages, milestone FROM {schema}.resend_loss($1, $2, $3, $4, $5)
