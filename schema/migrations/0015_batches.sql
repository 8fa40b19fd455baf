-- The inbox as functions, continued: batches of messages (claim_batch, settle_batch), and attempts
-- (attempt_failed, forget_attempts, begin_attempt, cancel_attempt).

-- Inserts the rows of many keys, as claim_key() in 0008_claims.sql does of one, and returns the
-- keys that were inserted. Of a key that occurs twice the first row is inserted.
-- Locking: an advisory lock is tried right before its row is inserted, not before all of them, and
-- never waited for: two batches with the same keys cannot block each other. The order of the keys
-- matters for the pages of the index only.
CREATE FUNCTION {schema}.claim_keys(
  scope text, locks bigint[], tenants text[], keys text[], fingerprints bytea[], message_ids bigint[]
) RETURNS TABLE (tenant text, key text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY
  INSERT INTO {schema}.inbox AS i (scope, tenant, key, fingerprint, message_id, status)
  SELECT claim_keys.scope, w.tenant, w.key, w.fingerprint, w.message_id, 'completed'
  FROM unnest(claim_keys.locks, claim_keys.tenants, claim_keys.keys, claim_keys.fingerprints, claim_keys.message_ids)
    AS w (lock, tenant, key, fingerprint, message_id)
  WHERE pg_try_advisory_xact_lock(w.lock)
  ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING
  RETURNING i.tenant::text, i.key::text;
END $$;
COMMENT ON FUNCTION {schema}.claim_keys IS 'A part of claim_batch(), for the crate oncebox-inbox: claims keys, whose locks are those of inbox_lock(), and returns the keys that are new. It checks nothing, and does not keep this transaction from its COMMIT.';

-- Claims keys for a batch of messages, in the transaction that their handlers write through. As
-- stored.sql and open.sql of oncebox-claims for batches. It begins with a guard: a row with a
-- deferred foreign key that nothing fulfils. Until settle_batch() takes it away no COMMIT succeeds,
-- neither a handler's nor that of a driver which commits each statement by itself: the keys are
-- claimed before any handler has run.
CREATE FUNCTION {schema}.claim_batch(
  scope text, tenants text[], keys text[], fingerprints bytea[], message_ids bigint[] DEFAULT NULL,
  time_limit interval DEFAULT NULL, OUT place integer, OUT answer text, OUT outcome json
) RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  asked integer := cardinality(claim_batch.keys);
  won integer[];
BEGIN
  IF asked IS NULL OR asked > 1000
     OR (cardinality(claim_batch.tenants), cardinality(claim_batch.fingerprints)) IS DISTINCT FROM (asked, asked)
     OR cardinality(claim_batch.message_ids) <> asked THEN
    RAISE EXCEPTION 'the batch has % keys, % tenants, % fingerprints and % ids of messages', coalesce(asked, 0),
      coalesce(cardinality(claim_batch.tenants), 0), coalesce(cardinality(claim_batch.fingerprints), 0), coalesce(cardinality(claim_batch.message_ids), 0)
      USING ERRCODE = 'OB011', HINT = 'A batch has 1000 keys at most, each with a tenant and a fingerprint, and all have an id or none.';
  END IF;
  PERFORM {schema}.check_inbox_names(claim_batch.scope, w.tenant), {schema}.check_key(w.key),
          CASE WHEN num_nulls(w.key, w.fingerprint) > 0 THEN {schema}.refuse_null(w.key IS NULL, false) END
  FROM unnest(claim_batch.tenants, claim_batch.keys, claim_batch.fingerprints) AS w (tenant, key, fingerprint);
  INSERT INTO {schema}.inbox_batch DEFAULT VALUES;
  IF claim_batch.time_limit IS NOT NULL AND claim_batch.time_limit NOT BETWEEN interval '1 ms' AND interval '24 days' THEN
    RAISE EXCEPTION 'time_limit % is not 1 ms to 24 days', claim_batch.time_limit
      USING ERRCODE = 'OB011', HINT = 'It bounds the transaction. Leave it out for the limits that the session has.';
  END IF;
  IF claim_batch.time_limit IS NOT NULL THEN
    PERFORM set_config(
      CASE WHEN current_setting('server_version_num')::integer >= 170000 THEN 'transaction_timeout' ELSE 'idle_in_transaction_session_timeout' END,
      ceil(1000 * extract(epoch FROM claim_batch.time_limit))::bigint || 'ms', true);
  END IF;
  IF EXISTS (SELECT FROM {schema}.inbox_scope AS s WHERE s.scope = claim_batch.scope AND s.mode = 'transaction') THEN
    SELECT array_agg(w.place::integer) INTO won
    FROM (
      SELECT f.tenant, f.key, min(f.place) AS place
      FROM unnest(claim_batch.tenants, claim_batch.keys) WITH ORDINALITY AS f (tenant, key, place)
      GROUP BY f.tenant, f.key
    ) AS w
    JOIN {schema}.claim_keys(
      claim_batch.scope,
      ARRAY(SELECT {schema}.inbox_lock(claim_batch.scope, l.tenant, l.key) FROM unnest(claim_batch.tenants, claim_batch.keys) AS l (tenant, key)),
      claim_batch.tenants, claim_batch.keys, claim_batch.fingerprints, claim_batch.message_ids
    ) AS n USING (tenant, key);
  END IF;
  IF cardinality(won) = asked THEN
    RETURN QUERY SELECT n, 'new', NULL::json FROM generate_series(1, asked) AS n;
    RETURN;
  END IF;
  -- A statement of its own: it sees the commits of others since.
  RETURN QUERY
  SELECT w.place::integer,
         CASE
           WHEN w.place = ANY (won) THEN 'new'
           WHEN s.is_clear AND s.status = 'completed' THEN 'replayed'
           WHEN s.is_clear AND s.status = 'rejected' THEN 'rejected'
           ELSE 'alone'
         END,
         CASE WHEN s.is_clear AND s.status <> 'dead' AND w.place <> ALL (coalesce(won, '{}')) THEN convert_from(s.outcome, 'UTF8')::json END
  FROM unnest(claim_batch.tenants, claim_batch.keys, claim_batch.fingerprints) WITH ORDINALITY AS w (tenant, key, fingerprint, place)
  LEFT JOIN LATERAL (
    SELECT r.status,
           r.outcome,
           -- Neither of another payload, nor of this batch, nor one that is to go.
           r.fingerprint = w.fingerprint AND NOT {schema}.is_own(r.xmin)
             AND NOT coalesce(r.created_at < statement_timestamp() - make_interval(secs => t.retention_seconds), false) AS is_clear
    FROM {schema}.inbox AS r
    JOIN {schema}.inbox_scope AS t ON t.scope = r.scope
    WHERE r.scope = claim_batch.scope AND r.tenant = w.tenant AND r.key = w.key
    OFFSET 0
  ) AS s ON true
  ORDER BY w.place;
END $$;
COMMENT ON FUNCTION {schema}.claim_batch IS 'Claims the keys of a batch of messages in this transaction: one row for each place, from 1: new (handle it), replayed or rejected (a copy, with its outcome), alone (claim it by itself after this transaction: a copy within the batch, in flight, dead, of another payload, of a scope that is new). Nothing is committed before settle_batch(). A fingerprint is inbox_fingerprint(payload). time_limit: the transaction is ended after it (before PostgreSQL 17: when the session was idle for as long).';

-- Stores how the handlers of a batch ended, gives keys back, and takes the guard away. It is the
-- last statement before COMMIT: from here on nothing holds a handler's own.
CREATE FUNCTION {schema}.settle_batch(
  scope text, tenants text[] DEFAULT NULL, keys text[] DEFAULT NULL, outcomes text[] DEFAULT NULL, statuses text[] DEFAULT NULL,
  released_tenants text[] DEFAULT NULL, released_keys text[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stored bigint;
BEGIN
  DELETE FROM {schema}.inbox_batch AS b WHERE b.xact = pg_current_xact_id_if_assigned();
  IF NOT FOUND THEN
    RAISE EXCEPTION 'this transaction has claimed no batch, or settled it already'
      USING ERRCODE = 'OB010', HINT = 'settle_batch() follows once on claim_batch() in the same transaction. Did a handler end the transaction by itself?';
  END IF;
  IF cardinality(settle_batch.keys) > 0 THEN
    WITH ended AS (
      SELECT w.*
      FROM unnest(settle_batch.tenants, settle_batch.keys, settle_batch.outcomes, settle_batch.statuses) AS w (tenant, key, outcome, status)
      WHERE w.status IN ('completed', 'rejected') AND coalesce(octet_length(w.outcome), 0) <= 1048576
    ), settled AS (
      UPDATE {schema}.inbox AS i
      SET status = f.status, outcome = CASE WHEN json_typeof(f.outcome::json) <> 'null' THEN convert_to(f.outcome, 'UTF8') END
      FROM (
        SELECT r.ctid AS place, w.status, w.outcome
        FROM ended AS w
        CROSS JOIN LATERAL (
          SELECT r.ctid
          FROM {schema}.inbox AS r
          WHERE r.scope = settle_batch.scope AND r.tenant = w.tenant AND r.key = w.key AND {schema}.is_own(r.xmin)
          OFFSET 0
        ) AS r
      ) AS f
      WHERE i.ctid = f.place
      RETURNING i.key
    ) SELECT count(*) INTO stored FROM settled;
    IF stored <> cardinality(settle_batch.keys) THEN
      RAISE EXCEPTION '% of the % keys that end are not claimed by this transaction, or have no status, or an outcome over 1048576 bytes (1 MiB)',
        cardinality(settle_batch.keys) - stored, cardinality(settle_batch.keys)
        USING ERRCODE = 'OB010', HINT = 'settle_batch() takes keys for which claim_batch() answered "new", once each; a status is "completed" or "rejected".';
    END IF;
  END IF;
  IF cardinality(settle_batch.released_keys) > 0 THEN
    DELETE FROM {schema}.inbox AS i
    USING unnest(settle_batch.released_tenants, settle_batch.released_keys) AS w (tenant, key)
    CROSS JOIN LATERAL (
      SELECT r.ctid
      FROM {schema}.inbox AS r
      WHERE r.scope = settle_batch.scope AND r.tenant = w.tenant AND r.key = w.key AND {schema}.is_own(r.xmin)
      OFFSET 0
    ) AS r
    WHERE i.ctid = r.ctid;
    GET DIAGNOSTICS stored = ROW_COUNT;
    IF stored <> cardinality(settle_batch.released_keys) THEN
      RAISE EXCEPTION '% of the % released keys are not claimed by this transaction', cardinality(settle_batch.released_keys) - stored,
        cardinality(settle_batch.released_keys)
        USING ERRCODE = 'OB010', HINT = 'Release keys for which claim_batch() answered "new", once each.';
    END IF;
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.settle_batch IS 'Ends a batch, right before COMMIT: stores replies and rejections (a key that just completes need not be named), and gives the released keys back, whose handlers have not run.';

-- Counts a failed attempt at a message. Earlier runs that left no trace count too, except the first
-- one: it ran beside other messages, and one of those may have ended the process. The message is
-- told from its copies by where it is stored. `pause` is the pause in seconds after a first
-- failure, `pause_max` the longest one: the pause doubles with each failure.
-- Index: inbox_attempt_pkey. Locking: the row of this copy of the message.
CREATE FUNCTION {schema}.attempt_failed(
  scope text, key text, tenant text DEFAULT '', stream text DEFAULT NULL, stream_sequence bigint DEFAULT NULL,
  stored_at timestamptz DEFAULT NULL, reason text DEFAULT NULL, subject text DEFAULT NULL,
  pause double precision DEFAULT NULL, pause_max double precision DEFAULT NULL, failures bigint DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  failed bigint;
  longest double precision := CASE WHEN attempt_failed.pause_max IS NOT NULL
    THEN least(attempt_failed.pause_max, {schema}.retention_max()) END;
BEGIN
  IF attempt_failed.key IS NULL THEN
    PERFORM {schema}.refuse_null(true, false);
  END IF;
  PERFORM {schema}.check_inbox_names(attempt_failed.scope, attempt_failed.tenant), {schema}.check_key(attempt_failed.key), {schema}.check_stored_at(attempt_failed.stored_at);
  IF attempt_failed.pause < 0 OR attempt_failed.pause_max < 0
     OR num_nulls(attempt_failed.pause, attempt_failed.pause_max) = 1 THEN
    RAISE EXCEPTION 'pause % and pause_max % are not both 0 seconds or more', attempt_failed.pause, attempt_failed.pause_max
      USING ERRCODE = 'OB011', HINT = 'Leave them out when you do not know when the message is delivered again.';
  END IF;
  IF attempt_failed.failures < 0 THEN
    RAISE EXCEPTION 'failures is %, which is no count', attempt_failed.failures
      USING ERRCODE = 'OB011', HINT = 'Leave it out where nothing else counts the attempts.';
  END IF;
  INSERT INTO {schema}.inbox_attempt AS a
    (scope, tenant, key, message, failures, reason, failed_at, due_at, stream, stream_sequence, subject)
  VALUES (attempt_failed.scope, attempt_failed.tenant, attempt_failed.key,
          {schema}.inbox_copy(attempt_failed.stream, attempt_failed.stream_sequence, attempt_failed.stored_at), coalesce(attempt_failed.failures, 1),
          {schema}.bounded_reason(attempt_failed.reason), clock_timestamp(),
          clock_timestamp() + make_interval(secs => least(attempt_failed.pause, longest)),
          attempt_failed.stream, attempt_failed.stream_sequence, attempt_failed.subject)
  ON CONFLICT ON CONSTRAINT inbox_attempt_pkey DO UPDATE
  SET failures = coalesce(attempt_failed.failures, a.failures + greatest(a.begun - 1, 1)),
      begun = 0,
      touched_at = clock_timestamp(),
      reason = excluded.reason,
      failed_at = excluded.failed_at,
      due_at = clock_timestamp() + make_interval(secs => least(
        attempt_failed.pause * 2::double precision ^ least(a.failures + greatest(a.begun - 1, 1) - 1, 30),
        longest
      )),
      stream = excluded.stream,
      stream_sequence = excluded.stream_sequence,
      subject = excluded.subject
  RETURNING a.failures INTO failed;
  RETURN failed;
END $$;
COMMENT ON FUNCTION {schema}.attempt_failed IS 'Counts a failed attempt at a message, after its rollback; returns how many have failed. The rest is for operators: reason, subject, and when it is delivered again, after pause seconds that double with each failure up to pause_max; for a fixed pause both are the same. failures: how many have failed, where something else counts them, as claim_leased() does.';

-- Forgets how often a message was tried that has ended.
-- Index: inbox_attempt_pkey, by its first columns; inbox_pkey. Locking: the key's rows. No run
-- counts attempts at a key that has ended.
CREATE FUNCTION {schema}.forget_attempts(scope text, key text, tenant text DEFAULT '') RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM {schema}.inbox_attempt AS a
  WHERE a.scope = $1
    AND a.tenant = $3
    AND a.key = $2
    AND EXISTS (SELECT FROM {schema}.inbox AS i WHERE i.scope = a.scope AND i.tenant = a.tenant AND i.key = a.key)
$$;
COMMENT ON FUNCTION {schema}.forget_attempts IS 'Forgets how often a message was tried, once its key has ended: after the COMMIT of one that had been delivered before.';

-- The rest of the pause that an earlier run of a message has asked for; JetStream forgets it with
-- its consumer.
CREATE FUNCTION {schema}.pause_left(
  scope text, key text, tenant text DEFAULT '', stream text DEFAULT NULL, stream_sequence bigint DEFAULT NULL,
  stored_at timestamptz DEFAULT NULL
) RETURNS double precision
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  copy text;
  due_at timestamptz;
BEGIN
  PERFORM {schema}.check_stored_at($6);
  copy := {schema}.inbox_copy($4, $5, $6);
  SELECT max(p.due_at) INTO due_at
  FROM (
    SELECT a.due_at
    FROM {schema}.inbox_attempt AS a
    WHERE a.scope = $1 AND a.tenant = $3 AND a.key = $2 AND a.message = copy
    UNION ALL
    SELECT z.due_at
    FROM {schema}.inbox_snooze AS z
    WHERE z.scope = $1 AND z.tenant = $3 AND z.key = $2 AND z.message = copy
  ) AS p;
  RETURN least(coalesce(greatest(extract(epoch FROM due_at) - extract(epoch FROM clock_timestamp()), 0), 0), 86400);
END $$;
COMMENT ON FUNCTION {schema}.pause_left IS 'How many seconds of a message''s pause are left, a day at most: its last run failed, or was snoozed.';

-- Records that a message which was delivered before is run again, as begin.sql of oncebox-claims.
-- If the process dies during this run, the record stays and shows it. The first such run had others
-- beside it, of which each may have ended the process, so it proves nothing; from then on the
-- message runs alone among its like, and each run that leaves no trace is an attempt.
CREATE FUNCTION {schema}.begin_attempt(
  scope text, key text, tenant text DEFAULT '', stream text DEFAULT NULL, stream_sequence bigint DEFAULT NULL,
  stored_at timestamptz DEFAULT NULL, subject text DEFAULT NULL, attempts_max bigint DEFAULT 20, is_alone boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  copy text;
  past record;
  untraced text := 'the attempt left no trace: did it end the process?';
BEGIN
  IF begin_attempt.key IS NULL THEN
    PERFORM {schema}.refuse_null(true, false);
  END IF;
  PERFORM {schema}.check_inbox_names(begin_attempt.scope, begin_attempt.tenant), {schema}.check_key(begin_attempt.key),
          {schema}.check_stored_at(begin_attempt.stored_at);
  copy := {schema}.inbox_copy(begin_attempt.stream, begin_attempt.stream_sequence, begin_attempt.stored_at);
  -- Of a key that has ended, or is in flight, the claim finds out which.
  IF NOT pg_try_advisory_xact_lock({schema}.inbox_lock(begin_attempt.scope, begin_attempt.tenant, begin_attempt.key)) OR EXISTS (
    SELECT
    FROM {schema}.inbox AS i
    JOIN {schema}.inbox_scope AS s ON s.scope = i.scope
    WHERE i.scope = begin_attempt.scope AND i.tenant = begin_attempt.tenant AND i.key = begin_attempt.key
      AND NOT coalesce(i.created_at < statement_timestamp() - make_interval(secs => s.retention_seconds), false)
  ) THEN
    RETURN 'run';
  END IF;
  IF {schema}.pause_left(begin_attempt.scope, begin_attempt.key, begin_attempt.tenant, begin_attempt.stream,
                         begin_attempt.stream_sequence, begin_attempt.stored_at) > 0.02 THEN
    RETURN 'wait';
  END IF;
  SELECT a.failures, a.begun INTO past
  FROM {schema}.inbox_attempt AS a
  WHERE a.scope = begin_attempt.scope AND a.tenant = begin_attempt.tenant AND a.key = begin_attempt.key AND a.message = copy;
  -- Three runs alone that end their process are enough.
  IF past.begun > 3 OR past.failures + greatest(past.begun - 1, 0) >= begin_attempt.attempts_max THEN
    RETURN 'dead';
  END IF;
  IF past.begun > 0 AND begin_attempt.is_alone IS NOT TRUE THEN
    RETURN 'alone';
  END IF;
  INSERT INTO {schema}.inbox_attempt AS a (scope, tenant, key, message, begun, stream, stream_sequence, subject)
  VALUES (begin_attempt.scope, begin_attempt.tenant, begin_attempt.key, copy, 1, begin_attempt.stream, begin_attempt.stream_sequence,
          begin_attempt.subject)
  ON CONFLICT ON CONSTRAINT inbox_attempt_pkey DO UPDATE
  SET begun = a.begun + 1,
      touched_at = clock_timestamp(),
      reason = CASE WHEN a.begun >= 2 THEN untraced ELSE a.reason END,
      failed_at = CASE WHEN a.begun >= 2 THEN clock_timestamp() ELSE a.failed_at END,
      due_at = CASE WHEN a.begun >= 2 THEN NULL ELSE a.due_at END;
  RETURN 'run';
END $$;
COMMENT ON FUNCTION {schema}.begin_attempt IS 'Records, in a transaction of its own before the claim, that a message which was delivered before is run again; attempt_failed(), forget_attempts() or cancel_attempt() ends it. Answers run (claim it), wait (its pause is not over: ask for it again after pause_left() seconds), alone (an earlier run left no trace: wait until no other such message runs in this process, and call again with is_alone), dead (its runs end their processes, or attempts_max is reached: bury it).';

-- Takes begin_attempt() back: the run made no attempt.
CREATE FUNCTION {schema}.cancel_attempt(
  scope text, key text, tenant text DEFAULT '', stream text DEFAULT NULL, stream_sequence bigint DEFAULT NULL, stored_at timestamptz DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}.check_stored_at($6);
  UPDATE {schema}.inbox_attempt AS a
  SET begun = a.begun - 1
  WHERE a.scope = $1 AND a.tenant = $3 AND a.key = $2 AND a.message = {schema}.inbox_copy($4, $5, $6) AND a.begun > 0;
END $$;
COMMENT ON FUNCTION {schema}.cancel_attempt IS 'Takes begin_attempt() back when the run made no attempt: another process works on the key, or PostgreSQL did not answer.';
