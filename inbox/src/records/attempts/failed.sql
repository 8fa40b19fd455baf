-- Record that an attempt has failed; how many have, this one included. Of the runs that left no
-- trace before it, the first was beside others and may have died of one of them, so it does not
-- count.
-- $1 scope; $2 tenant; $3 key; $4 message.
-- Index: inbox_attempt_pkey.
-- Locking: the row of this copy of the message, for this statement.
INSERT INTO {schema}.inbox_attempt AS a (scope, tenant, key, message, failures)
VALUES ($1::text, $2::text, $3::text, $4::text, 1)
ON CONFLICT ON CONSTRAINT inbox_attempt_pkey DO UPDATE
SET failures = a.failures + greatest(a.begun - 1, 1),
    begun = 0,
    touched_at = clock_timestamp()
RETURNING failures
