-- Read the row of a key that could not be claimed.
-- $1 scope; $2 tenant; $3 key; $4 retention in seconds, or NULL for ever.
-- Index: inbox_pkey.
-- Locking: none. No row means that the holder of the key's lock has not committed yet, or that
-- retention removed the row just now; the caller answers "in flight" to both. A dead key is looked
-- at again, see `dead.sql`.
SELECT status,
       fingerprint,
       outcome,
       message_id::text,
       coalesce(created_at < statement_timestamp() - make_interval(secs => $4::double precision), false)::text
         AS is_expired
FROM {schema}.inbox
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
