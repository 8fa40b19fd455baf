-- Delete the row of a key that is older than its retention, so that the key can be claimed again.
-- $1 lock: 64-bit hash as in `../claim.sql`; $2 scope; $3 tenant; $4 key; $5 retention in seconds.
-- Index: inbox_pkey.
-- Locking: only with the advisory lock, which the caller may have already: so no two transactions
-- replace one row. The row may be locked by the sweep, for as long as one step of it takes.
DELETE FROM {schema}.inbox
WHERE scope = $2::text
  AND tenant = $3::text
  AND key = $4::text
  AND created_at < statement_timestamp() - make_interval(secs => $5::double precision)
  AND pg_try_advisory_xact_lock($1::bigint)
