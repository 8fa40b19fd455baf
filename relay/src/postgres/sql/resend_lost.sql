-- Send again the messages of a lane that a stream lost: 0005_receipts.sql has the function and its
-- locks.
-- $1: the lane; $2: the stream.
SELECT {schema}.resend_lost($1::smallint, $2::text)
