-- Forget parked messages that a stream has stored. Cursors passed them long ago, so each gets a
-- receipt of its own, with the message where the log has it no more.
-- $1: lanes; $2: ids; $3: the streams; $4: their sequences.
-- Index: parked_pkey, late_receipt_pkey. Locking: the lanes are locked by claim.sql.
WITH unparked AS (
  DELETE FROM {schema}.parked AS p
  USING unnest($1::smallint[], $2::bigint[], $3::text[], $4::bigint[]) AS s (lane, id, stream, sequence)
  WHERE p.lane = s.lane AND p.id = s.id
  RETURNING p.*, s.stream, s.sequence
),
carried AS (
  SELECT u.*, u.turn <> ALL (ARRAY(SELECT g.turn FROM {schema}.segment AS g WHERE NOT g.is_empty)) AS is_alone
  FROM unparked AS u
)
INSERT INTO {schema}.late_receipt AS r (
  lane, id, replay, stream, sequence, turn, key, subject, ordering_key, headers, payload, created_at
)
SELECT
  u.lane,
  u.id,
  u.replay,
  u.stream,
  u.sequence,
  u.turn,
  CASE WHEN u.is_alone THEN u.key END,
  CASE WHEN u.is_alone THEN u.subject END,
  CASE WHEN u.is_alone THEN u.ordering_key END,
  CASE WHEN u.is_alone THEN u.headers END,
  CASE WHEN u.is_alone THEN u.payload END,
  CASE WHEN u.is_alone THEN u.created_at END
FROM carried AS u
ON CONFLICT ON CONSTRAINT late_receipt_pkey DO UPDATE
SET
  stream = excluded.stream,
  sequence = excluded.sequence,
  at = excluded.at,
  turn = excluded.turn,
  key = excluded.key,
  subject = excluded.subject,
  ordering_key = excluded.ordering_key,
  headers = excluded.headers,
  payload = excluded.payload,
  created_at = excluded.created_at
