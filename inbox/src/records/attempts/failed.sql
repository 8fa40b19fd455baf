-- Record that an attempt has failed. Returns how many have failed, this one included. Earlier runs
-- that left no trace count too, except the first one: it ran beside other messages, and one of
-- those may have ended the process.
-- $1 scope; $2 tenant; $3 key; $4 message.
-- Index: inbox_attempt_pkey.
-- Locking: the row of this copy of the message, for this statement.
INSERT INTO {schema}.inbox_attempt AS a (scope, tenant, key, message, failures)
VALUES ($1::text, $2::text, $3::text, $4::text, 1)
ON CONFLICT ON CONSTRAINT inbox_attempt_pkey DO UPDATE
SET failures = a.failures + greatest(a.begun - 1, 1),
    begun = 0,
    touched_at = clock_timestamp()
RETURNING failures::text
