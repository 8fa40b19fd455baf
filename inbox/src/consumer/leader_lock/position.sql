-- Where a strictly ordered consumer that is missing from JetStream has to continue.
-- $1 stream; $2 durable name; $3 when the stream was created, as text.
-- Index: consumer_position_pkey. Locking: none; only the process that leads reads and writes the
-- row.
SELECT next_sequence::text
FROM {schema}.consumer_position
WHERE stream = $1::text
  AND durable = $2::text
  AND stream_created = $3::text
