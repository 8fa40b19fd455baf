-- Record that an attempt has failed, why, and when the message is run again. Returns how many have
-- failed, this one included. Earlier runs that left no trace count too, except the first one: it
-- ran beside other messages, and one of those may have ended the process.
-- $1 scope; $2 tenant; $3 key; $4 message; $5 reason; $6 stream or NULL; $7 sequence in it or NULL;
-- $8 subject; $9 pause after the first failure, in milliseconds, which doubles with each further
-- one; $10 longest pause; $11 how many have failed, or NULL: as many as are recorded, and this one.
-- Index: inbox_attempt_pkey.
-- Locking: the row of this copy of the message, for this statement.
INSERT INTO {schema}.inbox_attempt AS a
  (scope, tenant, key, message, failures, reason, failed_at, due_at, stream, stream_sequence, subject)
VALUES ($1::text, $2::text, $3::text, $4::text, coalesce($11::bigint, 1), $5::text, clock_timestamp(),
        clock_timestamp() + least($9::double precision, $10::double precision) * interval '1 millisecond',
        $6::text, $7::bigint, $8::text)
ON CONFLICT ON CONSTRAINT inbox_attempt_pkey DO UPDATE
SET failures = coalesce($11::bigint, a.failures + greatest(a.begun - 1, 1)),
    begun = 0,
    touched_at = clock_timestamp(),
    reason = excluded.reason,
    failed_at = excluded.failed_at,
    due_at = clock_timestamp() + interval '1 millisecond' * least(
      $9::double precision * 2::double precision ^ least(a.failures + greatest(a.begun - 1, 1) - 1, 30),
      $10::double precision
    ),
    stream = excluded.stream,
    stream_sequence = excluded.stream_sequence,
    subject = excluded.subject
RETURNING failures::text
