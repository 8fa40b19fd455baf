-- Note that a stream lost messages that it had acknowledged to a lane: 0005_receipts.sql has the
-- function and its locks.
-- $1: the lane; $2: the stream; $3: number of the cursor by which it was found; $4: kind; $5: the
-- highest sequence that was acknowledged; $6: number of the receipt that is proven, NULL for none.
SELECT {schema}.note_loss($1::smallint, $2::text, $3::bigint, $4::text, $5::bigint, $6::bigint)
