-- Enqueue messages of which some are delayed, in the caller's transaction, in the order given.
-- Parameters, arrays of one length: $1 keys, $2 subjects, $3 payloads, $4 headers as JSON text, $5
-- ordering keys with NULLs; $6 times and $7 delays in seconds, NULL where there is none: with
-- neither the message is due at once. Returns one id for each, in that order; NULL where this very
-- message is enqueued already. The delay counts from now by the database's clock.
-- Index: message_N_key_unique, inside the functions. Locks: as enqueue_all.sql.
SELECT
  CASE
    WHEN m.not_before IS NULL AND m.seconds IS NULL
    THEN {schema}.enqueue(m.key, m.subject, m.payload, m.headers::jsonb, m.ordering_key)
    ELSE {schema}.enqueue_at(
      m.key, m.subject, m.payload,
      coalesce(m.not_before, clock_timestamp() + make_interval(secs => m.seconds)),
      m.headers::jsonb, m.ordering_key
    )
  END
FROM (
  SELECT g.*
  FROM unnest($1, $2, $3, $4, $5, $6, $7) WITH ORDINALITY
    AS g (key, subject, payload, headers, ordering_key, not_before, seconds, n)
  ORDER BY g.n
) AS m
