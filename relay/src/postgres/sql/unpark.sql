-- Forget parked messages that a stream has stored. Cursors passed them long ago, so each gets a
-- receipt of its own.
-- $1: lanes; $2: ids; $3: the streams; $4: their sequences.
-- Index: parked_pkey, late_receipt_pkey. Locking: the lanes are locked by claim.sql.
WITH unparked AS (
  DELETE FROM {schema}.parked AS p
  USING unnest($1::smallint[], $2::bigint[], $3::text[], $4::bigint[]) AS s (lane, id, stream, sequence)
  WHERE p.lane = s.lane AND p.id = s.id
  RETURNING p.lane, p.id, p.replay, s.stream, s.sequence
)
INSERT INTO {schema}.late_receipt AS r (lane, id, replay, stream, sequence)
SELECT u.lane, u.id, u.replay, u.stream, u.sequence
FROM unparked AS u
ON CONFLICT ON CONSTRAINT late_receipt_pkey DO UPDATE
SET
  stream = excluded.stream,
  sequence = excluded.sequence,
  at = excluded.at
