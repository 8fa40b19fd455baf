-- Send again the messages of a lane that a stream lost, and record it: 0014_actions.sql has the
-- function, 0005_receipts.sql its locks.
-- $1: the lane; $2: the stream; $3: not from before the milestone that is older than this; NULL for
-- all of it; $4: operator; $5: note. Index: those of the function. Locking: the maintenance row,
-- then the lane.
SELECT {schema}.resend_loss($1, $2, $3, $4, $5) AS messages
