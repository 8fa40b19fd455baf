-- Record where a strictly ordered consumer continues, before it is deleted and created again there.
-- $1 stream; $2 durable name; $3 when the stream was created, as text; $4 next sequence; $5
-- takeovers to add, 0 or 1.
-- Index: consumer_position_pkey. Locking: none beyond the row's; only the process that leads writes
-- it.
SELECT {schema}.continue_consumer($1::text, $2::text, $3::text, $4::bigint, $5::bigint = 1)::text
