-- Record that an attempt has failed, why, and when the message is run again. Returns how many have
-- failed, this one included.
-- $1 scope; $2 tenant; $3 key; $4 stream or NULL; $5 sequence in it or NULL; $6 when the stream
-- stored the message, in microseconds since 1970, or NULL; $7 reason; $8 subject; $9 pause after
-- the first failure, in seconds; $10 longest pause; $11 how many have failed, or NULL: as many as
-- are recorded, and this one.
-- Index and locking: see the function, in `schema/migrations/0015_batches.sql`.
SELECT {schema}.attempt_failed(
    $1::text, $3::text, $2::text, $4::text, $5::bigint, timestamptz 'epoch' + $6::bigint * interval '1 microsecond',
    $7::text, $8::text, $9::double precision, $10::double precision, $11::bigint
  )::text
