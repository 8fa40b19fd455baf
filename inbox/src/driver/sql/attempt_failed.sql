-- Count a failed attempt at a message, after its rollback; how many have failed.
-- $1 scope; $2 key; $3 tenant; $4 stream or NULL; $5 sequence in the stream or NULL; $6 when the
-- stream stored it, in microseconds since 1970, or NULL.
-- Index: inbox_attempt_pkey, inside the function.
-- Locking: the row of this copy, for this statement.
SELECT {schema}.attempt_failed(
  $1::text, $2::text, $3::text, $4::text, $5::bigint,
  timestamptz 'epoch' + $6::bigint * interval '1 microsecond'
)::text
