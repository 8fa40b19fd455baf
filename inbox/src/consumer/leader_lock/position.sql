-- Where a strictly ordered consumer that is missing from JetStream has to continue.
-- $1 stream; $2 durable name; $3 when the stream was created, as text.
-- Index: consumer_position_pkey. Locking: none; only the process that leads reads and writes the
-- row.
SELECT {schema}.consumer_place($1::text, $2::text, $3::text)::text
