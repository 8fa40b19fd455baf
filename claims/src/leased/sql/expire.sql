-- Delete the row of a key that is older than its retention: the key was claimed again, and its end
-- takes that row's place.
-- $1 scope; $2 tenant; $3 key; $4 retention in seconds.
-- Index: inbox_pkey.
-- Locking: the row, and the caller has the claim's, so no other transaction replaces it. The sweep
-- may have it locked, for as long as one step takes; `claim.sql` has set how long is waited.
DELETE FROM {schema}.inbox
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
  AND created_at < statement_timestamp() - make_interval(secs => $4::double precision)
