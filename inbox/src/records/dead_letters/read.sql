-- Read the dead letter of a message of a stream, and its age in milliseconds.
-- $1 scope; $2 stream; $3 sequence in the stream; $4 when the stream stored it.
-- Index: dead_letter_once.
-- Locking: none; an operator who deals with the letter at this moment may be told of it once more.
SELECT id,
       tenant,
       key,
       reason,
       deliveries,
       (extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint AS age_milliseconds
FROM {schema}.dead_letter
WHERE scope = $1::text
  AND stream = $2::text
  AND stream_sequence = $3::bigint
  AND stored_at = $4::timestamptz
