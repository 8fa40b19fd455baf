-- Enqueue one message, now or for a time, in the caller's transaction, through any driver.
-- $1 key; $2 subject; $3 payload; $4 headers as JSON text; $5 ordering key or NULL; $6 when it is
-- due, in seconds since 1970, or NULL; $7 its delay in seconds, or NULL. With neither it is due at
-- once.
-- Returns the id as text, or NULL when this very message is enqueued already.
-- Index: message_N_key_unique, inside the functions. Locks: waits only for an open transaction with
--   the same key.
SELECT
  (CASE
    WHEN $6::double precision IS NULL AND $7::double precision IS NULL
    THEN {schema}.enqueue($1::text, $2::text, $3::bytea, $4::text::jsonb, $5::text)
    ELSE {schema}.enqueue_at(
      $1::text, $2::text, $3::bytea,
      coalesce(to_timestamp($6::double precision), clock_timestamp() + make_interval(secs => $7::double precision)),
      $4::text::jsonb, $5::text
    )
  END)::text
