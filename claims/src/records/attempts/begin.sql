-- Record that a message which was delivered before is run again. If the process dies during this
-- run, the record stays and shows it.
-- $1 lock: 64-bit hash of schema, scope, tenant and key; $2 scope; $3 tenant; $4 key; $5 message;
-- $6 1 when it may be run although an earlier run left no trace, else 0; $7 1 when the last run
-- that began is known to be no attempt, else 0;
-- $8 retention of keys in seconds, or NULL for ever; $9 stream or NULL; $10 sequence in it or NULL;
-- $11 subject; $12 the reason when the last run, which was alone, left no trace: that was an
-- attempt, and only this run records it. Returns no row, and records nothing, when the key has
-- ended or another transaction works on it (the claim that follows finds out which), or when $6 is
-- 0 and a run has left no trace. `open` is the number of runs that left no trace. `rest` is the
-- rest of the pause that an earlier run has asked for, in milliseconds, a day at most: above 0
-- nothing is recorded. JetStream forgets a pause with its consumer.
-- Index: inbox_attempt_pkey, inbox_snooze_pkey, inbox_pkey. Locking: the key's advisory lock, tried
-- without waiting, until the transaction ends, which has only statements like this one; so only the
-- process that works on the key changes the row.
WITH before AS MATERIALIZED (
  SELECT begun
  FROM {schema}.inbox_attempt
  WHERE scope = $2::text
    AND tenant = $3::text
    AND key = $4::text
    AND message = $5::text
),
free AS MATERIALIZED (
  SELECT least(greatest(ceil(1000 * (extract(epoch FROM max(p.due_at)) - extract(epoch FROM clock_timestamp()))), 0), 86400000)::bigint AS rest
  FROM (
    SELECT a.due_at
    FROM {schema}.inbox_attempt AS a
    WHERE a.scope = $2::text AND a.tenant = $3::text AND a.key = $4::text AND a.message = $5::text
    UNION ALL
    SELECT z.due_at
    FROM {schema}.inbox_snooze AS z
    WHERE z.scope = $2::text AND z.tenant = $3::text AND z.key = $4::text AND z.message = $5::text
  ) AS p
  HAVING NOT EXISTS (
    SELECT
    FROM {schema}.inbox AS i
    WHERE i.scope = $2::text
      AND i.tenant = $3::text
      AND i.key = $4::text
      AND i.status <> 'dead'
      AND NOT coalesce(i.created_at < statement_timestamp() - make_interval(secs => $8::double precision), false)
  )
),
recorded AS (
  INSERT INTO {schema}.inbox_attempt AS a (scope, tenant, key, message, begun)
  SELECT $2::text, $3::text, $4::text, $5::text, 1
  FROM free AS f
  WHERE f.rest <= 20
    AND pg_try_advisory_xact_lock($1::bigint)
  ON CONFLICT ON CONSTRAINT inbox_attempt_pkey DO UPDATE
  SET begun = a.begun + CASE WHEN a.begun <= $7::bigint OR $6::bigint = 1 THEN 1 - least($7::bigint, a.begun) ELSE 0 END,
      touched_at = clock_timestamp(),
      reason = CASE WHEN $6::bigint = 1 AND a.begun - $7::bigint >= 2 THEN $12::text ELSE a.reason END,
      failed_at = CASE WHEN $6::bigint = 1 AND a.begun - $7::bigint >= 2 THEN clock_timestamp() ELSE a.failed_at END,
      due_at = CASE WHEN $6::bigint = 1 AND a.begun - $7::bigint >= 2 THEN NULL ELSE a.due_at END,
      stream = coalesce(a.stream, $9::text),
      stream_sequence = coalesce(a.stream_sequence, $10::bigint),
      subject = coalesce(a.subject, $11::text)
  RETURNING failures
)
SELECT r.failures::text, greatest(coalesce((SELECT b.begun FROM before AS b), 0) - $7::bigint, 0)::text AS open, '0' AS rest
FROM recorded AS r
UNION ALL
SELECT '0', '0', f.rest::text
FROM free AS f
WHERE f.rest > 20
