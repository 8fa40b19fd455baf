-- Send again the messages of a lane that a stream lost: 0005_receipts.sql has the function and its
-- locks.
-- $1: the lane; $2: the stream; $3: not from before the milestone that is older than this; NULL for
-- all of it.
SELECT {schema}.resend_lost($1::smallint, $2::text, $3::timestamptz)
