-- Record where a strictly ordered consumer continues, before it is deleted and created again there.
-- $1 stream; $2 durable name; $3 when the stream was created, as text; $4 next sequence; $5
-- takeovers to add, 0 or 1.
-- Index: consumer_position_pkey. Locking: none beyond the row's; only the process that leads writes
-- it.
INSERT INTO {schema}.consumer_position AS p (stream, durable, stream_created, next_sequence, takeovers)
VALUES ($1::text, $2::text, $3::text, $4::bigint, $5::bigint::integer)
ON CONFLICT ON CONSTRAINT consumer_position_pkey DO UPDATE
SET stream_created = excluded.stream_created,
    next_sequence = excluded.next_sequence,
    takeovers = CASE
      WHEN p.stream_created = excluded.stream_created AND p.next_sequence = excluded.next_sequence
      THEN p.takeovers + $5::bigint::integer
      ELSE $5::bigint::integer
    END,
    updated_at = clock_timestamp()
RETURNING takeovers::text
