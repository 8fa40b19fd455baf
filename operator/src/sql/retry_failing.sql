-- Make a failing message due now, and record it; the caller publishes a copy of it and then
-- commits. 0011_events.sql has the function. $1: scope; $2: tenant; $3: key; $4: copy; $5:
-- operator; $6: note. Index: inbox_attempt_pkey, inbox_pkey, inbox_claim_pkey. Locking: the rows
-- until the end of the transaction; another operator waits and then finds the message due, a
-- consumer waits to record its next failure, or to claim.
SELECT outbox, number FROM {schema}.retry_failing($1, $2, $3, $4, $5, $6)
