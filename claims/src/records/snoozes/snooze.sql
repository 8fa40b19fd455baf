-- Snooze a message: this run does not count as an attempt.
-- $1 scope; $2 tenant; $3 key; $4 stream or NULL; $5 sequence in it or NULL; $6 when the stream
-- stored the message, in microseconds since 1970, or NULL; $7 number of the delivery; $8 pause in
-- milliseconds; $9 longest time in milliseconds; $10 reason. Returns texts, which every driver
-- reads in the same way: how often the message was snoozed, and how many milliseconds ago for the
-- first time.
-- Index and locking: see the function, in `schema/migrations/0018_endings.sql`.
SELECT snoozes::text,
       (1000 * least(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM since), -1e12), 1e12))::bigint::text AS since_milliseconds
FROM {schema}.record_snooze(
  $1::text, $2::text, $3::text, $4::text, $5::bigint, timestamptz 'epoch' + $6::bigint * interval '1 microsecond', $7::bigint,
  $8::bigint * interval '1 millisecond', $9::bigint * interval '1 millisecond', $10::text
)
