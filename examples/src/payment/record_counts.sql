-- Write down the counts of one process of the payment service since its start. Parameters: $1
-- process, $2 handled, $3 replayed. Index: process_pkey. Locks: the process's own row.
INSERT INTO process (name, handled, replayed)
VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE
SET handled = excluded.handled, replayed = excluded.replayed, updated_at = clock_timestamp()
