-- Record that a message which was delivered before is run again. If the process dies during this
-- run, the record stays and shows it.
-- $1 lock: 64-bit hash of schema, scope, tenant and key; $2 scope; $3 tenant; $4 key; $5 message;
-- $6 1 when it may be run although an earlier run left no trace, else 0; $7 1 when the last run
-- that began is known to be no attempt, else 0;
-- $8 retention of keys in seconds, or NULL for ever. Returns no row, and records nothing, when the
-- key has ended or another transaction works on it (the claim that follows finds out which), or
-- when $6 is 0 and a run has left no trace. `open` is the number of runs that left no trace.
-- Index: inbox_attempt_pkey, inbox_pkey. Locking: the key's advisory lock, tried without waiting,
-- until this statement's own transaction ends; so only the process that works on the key changes
-- the row.
WITH before AS MATERIALIZED (
  SELECT begun
  FROM {schema}.inbox_attempt
  WHERE scope = $2::text
    AND tenant = $3::text
    AND key = $4::text
    AND message = $5::text
)
INSERT INTO {schema}.inbox_attempt AS a (scope, tenant, key, message, begun)
SELECT $2::text, $3::text, $4::text, $5::text, 1
WHERE NOT EXISTS (
    SELECT
    FROM {schema}.inbox AS i
    WHERE i.scope = $2::text
      AND i.tenant = $3::text
      AND i.key = $4::text
      AND i.status <> 'dead'
      AND NOT coalesce(i.created_at < statement_timestamp() - make_interval(secs => $8::double precision), false))
  AND pg_try_advisory_xact_lock($1::bigint)
ON CONFLICT ON CONSTRAINT inbox_attempt_pkey DO UPDATE
SET begun = a.begun + CASE WHEN a.begun <= $7::bigint OR $6::bigint = 1 THEN 1 - least($7::bigint, a.begun) ELSE 0 END,
    touched_at = clock_timestamp()
RETURNING failures::text,
          greatest(coalesce((SELECT b.begun FROM before AS b), 0) - $7::bigint, 0)::text AS open
