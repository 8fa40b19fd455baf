-- Make sure that a key that was found dead is: an operator who frees it has published its message
-- already when he commits, see `retry_letter.sql` of the relay, and that message must not be
-- answered from the row. No row: it is being freed, or was a moment ago; the caller answers "in
-- flight".
-- $1 scope; $2 tenant; $3 key.
-- Index: inbox_pkey.
-- Locking: the row, in the weakest mode that conflicts with its deletion; skipped, not waited for,
-- when another transaction deletes it. Copies of a dead message do not skip each other.
SELECT 'dead'
FROM {schema}.inbox
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
  AND status = 'dead'
FOR KEY SHARE SKIP LOCKED
