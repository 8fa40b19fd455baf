-- Read the dead letter of a message of a stream, and its age in milliseconds.
-- $1 scope; $2 stream; $3 sequence in the stream; $4 when the stream stored it, in
-- microseconds since 1970.
-- Index: dead_letter_once.
-- Locking: none; an operator who deals with the letter at this moment may be told of it once more.
SELECT id::text,
       tenant,
       key,
       reason,
       deliveries::text,
       (1000 * least(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM created_at), -1e12), 1e12))::bigint::text AS age_milliseconds
FROM {schema}.dead_letter
WHERE scope = $1::text
  AND stream = $2::text
  AND stream_sequence = $3::bigint
  AND stored_at = timestamptz 'epoch' + $4::bigint * interval '1 microsecond'
