-- What the migrations make, by pg_dump 18. Written by `make schema`, compared by the tests.

CREATE SCHEMA oncebox;

CREATE FUNCTION oncebox.abandon_saga(saga_id bigint, why text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  abandoned text;
BEGIN
  UPDATE "oncebox".saga AS s
  SET state = 'abandoned', reason = left(abandon_saga.why, 250), due_at = NULL, finished_at = clock_timestamp(),
      changed_at = clock_timestamp(), revision = s.revision + 1
  WHERE s.id = abandon_saga.saga_id AND s.finished_at IS NULL
  RETURNING s.key INTO abandoned;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  DELETE FROM "oncebox".saga_event AS e
  WHERE e.key = abandoned;
  -- Only a second or later attempt has a pause; any of them may be delayed, the newest or not.
  PERFORM "oncebox".cancel_delayed(concat(abandoned, ':', t.step, ':#', n.number, u.undo))
  FROM "oncebox".saga_step AS t
  CROSS JOIN (VALUES (''), (':undo')) AS u (undo)
  CROSS JOIN LATERAL generate_series(2, CASE u.undo WHEN '' THEN t.attempt ELSE t.undo_attempt END) AS n (number)
  WHERE t.saga_id = abandon_saga.saga_id;
  RETURN true;
END $$;

COMMENT ON FUNCTION oncebox.abandon_saga(saga_id bigint, why text) IS 'Give a saga up as it stands: attempts that are delayed are cancelled, nothing more is sent, nothing is undone, answers change nothing. Messages in the log already are delivered. False when it has finished already, or there is none.';

CREATE FUNCTION oncebox.abandon_saga_as(saga_id bigint, why text, by text, note text) RETURNS TABLE(command text, is_discarded boolean)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH abandoned AS MATERIALIZED (
    SELECT s.type, s.key, "oncebox".abandon_saga(s.id, $2::text) AS is_done
    FROM "oncebox".saga AS s
    WHERE s.id = $1
  )
  INSERT INTO "oncebox".audit (operator, note, action, scope, key)
  SELECT $3, $4, 'abandon', a.type, a.key
  FROM abandoned AS a
  WHERE a.is_done
  RETURNING NULL::text AS command, NULL::boolean AS is_discarded
$_$;

COMMENT ON FUNCTION oncebox.abandon_saga_as(saga_id bigint, why text, by text, note text) IS 'For operators: abandon_saga(), recorded. No row where it has finished.';

CREATE FUNCTION oncebox.adopt(is_moved boolean, discards boolean, operator text, note text, OUT identity text, OUT backlog bigint, OUT digest text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10s'
    AS $$
DECLARE
  place record;
  earlier text;
BEGIN
  PERFORM FROM "oncebox".lane AS l ORDER BY l.lane FOR UPDATE;
  SELECT * INTO place FROM "oncebox".home_here;
  earlier := coalesce(nullif(place.address, ''), 'a place that no relay has noted');
  IF place.verdict = 'new' OR place.verdict = 'here' AND place.rival IS NULL AND NOT is_moved THEN
    RAISE EXCEPTION 'this database is where its outbox lives: there is nothing to adopt'
      USING ERRCODE = 'OB013', HINT = 'See `oncebox status`: it says when relays take an outbox for a copy.';
  END IF;
  backlog := 0;
  IF NOT is_moved THEN
    IF discards THEN
      LOCK TABLE "oncebox".message_0, "oncebox".message_1, "oncebox".message_2, "oncebox".message_3, "oncebox".message_4,
        "oncebox".message_5, "oncebox".message_6, "oncebox".message_7, "oncebox".delayed IN SHARE ROW EXCLUSIVE MODE;
    END IF;
    SELECT count(*), md5(string_agg(concat_ws(' ', b.lane, b.id, b.action), ',' ORDER BY b.lane, b.id, b.action))
    INTO backlog, digest
    FROM "oncebox".backlog() AS b;
    IF discards THEN
      PERFORM "oncebox".discard_backlog(adopt.operator, adopt.note);
    END IF;
    UPDATE "oncebox".cursor SET acknowledged = '{}';
    DELETE FROM "oncebox".receipt;
    DELETE FROM "oncebox".late_receipt;
    DELETE FROM "oncebox".loss;
    DELETE FROM "oncebox".stream;
    -- The original looks by itself for the messages that it expects.
    DELETE FROM "oncebox".unhandled;
    DELETE FROM "oncebox".expectation_mark;
    UPDATE "oncebox".expectation SET looked_at = NULL, unhandled = 0, oldest_at = NULL, oldest_key = NULL;
    UPDATE "oncebox".outbox SET identity = DEFAULT;
  END IF;
  SELECT o.identity INTO identity FROM "oncebox".outbox AS o;
  INSERT INTO "oncebox".home AS h (system_identifier, database_oid, database_name, address)
  VALUES (place.system_identifier, place.database_oid, place.database_name, '')
  ON CONFLICT ON CONSTRAINT home_pkey DO UPDATE
  SET token = CASE WHEN is_moved THEN h.token ELSE excluded.token END,
      system_identifier = excluded.system_identifier, database_oid = excluded.database_oid,
      database_name = excluded.database_name,
      -- Where relays serve it already, they go on as they are.
      address = CASE WHEN place.verdict = 'here' AND place.rival IS NULL THEN h.address ELSE '' END,
      noted_at = CASE WHEN is_moved THEN h.noted_at ELSE excluded.noted_at END,
      -- Once relays serve it here, it is the senior of the place that it has left; see home.sql.
      moved_at = CASE WHEN is_moved THEN clock_timestamp() END,
      rival = NULL, rival_since = NULL, rival_seen_at = NULL;
  INSERT INTO "oncebox".audit (operator, note, action, reason)
  VALUES (adopt.operator, adopt.note, 'adopt', CASE
    WHEN is_moved AND place.verdict = 'here' AND place.rival IS NULL THEN format('it is the original, and stays outbox %s', identity)
    WHEN is_moved THEN format('moved here from %s: it stays outbox %s', earlier, identity)
    WHEN discards THEN format('a copy of %s: now outbox %s; %s messages of the backlog were discarded', earlier, identity, backlog)
    ELSE format('a copy of %s: now outbox %s; its backlog is kept: %s messages', earlier, identity, backlog)
  END);
END $$;

COMMENT ON FUNCTION oncebox.adopt(is_moved boolean, discards boolean, operator text, note text, OUT identity text, OUT backlog bigint, OUT digest text) IS 'For operators: relays may serve this copy of an outbox, as an outbox of its own, or as the original that has moved here.';

CREATE FUNCTION oncebox.advance_line(scope text, ordering_key text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  UPDATE "oncebox".inbox_behind AS b
  SET is_due = true
  WHERE NOT b.is_due
    AND b.id = (SELECT f.id FROM "oncebox".inbox_behind AS f WHERE f.scope = $1 AND f.ordering_key = $2 ORDER BY f.id LIMIT 1)
    AND NOT EXISTS (SELECT FROM "oncebox".dead_letter AS d WHERE d.scope = $1 AND d.ordering_key = $2 AND d.id < b.id)
$_$;

CREATE FUNCTION oncebox.append(ids bigint[], lanes smallint[], keys text[], subjects text[], ordering_keys text[], headers jsonb[], payloads bytea[], is_moved boolean) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  this_turn bigint;
  written_ids bigint[];
BEGIN
  FOR attempt IN 1 .. 5 LOOP
    this_turn := pg_sequence_last_value('"oncebox".turn');
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      PERFORM "oncebox".check_turn(this_turn);
    END IF;
    CASE this_turn % 8
      WHEN 0 THEN
        WITH written AS (
          INSERT INTO "oncebox".message_0 AS m (id, lane, key, subject, ordering_key, headers, payload)
          SELECT g.id, g.lane, g.key, g.subject, g.ordering_key, g.headers, g.payload
          FROM unnest(ids, lanes, keys, subjects, ordering_keys, append.headers, payloads)
            AS g (id, lane, key, subject, ordering_key, headers, payload)
          WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
            AND (is_moved OR NOT EXISTS (SELECT FROM "oncebox".message_7 AS b WHERE b.key = g.key)
                         AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = g.key))
          ORDER BY g.id
          ON CONFLICT ON CONSTRAINT message_0_key_unique DO NOTHING
          RETURNING m.id
        )
        SELECT array_agg(w.id) INTO written_ids FROM written AS w;
      WHEN 1 THEN
        WITH written AS (
          INSERT INTO "oncebox".message_1 AS m (id, lane, key, subject, ordering_key, headers, payload)
          SELECT g.id, g.lane, g.key, g.subject, g.ordering_key, g.headers, g.payload
          FROM unnest(ids, lanes, keys, subjects, ordering_keys, append.headers, payloads)
            AS g (id, lane, key, subject, ordering_key, headers, payload)
          WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
            AND (is_moved OR NOT EXISTS (SELECT FROM "oncebox".message_0 AS b WHERE b.key = g.key)
                         AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = g.key))
          ORDER BY g.id
          ON CONFLICT ON CONSTRAINT message_1_key_unique DO NOTHING
          RETURNING m.id
        )
        SELECT array_agg(w.id) INTO written_ids FROM written AS w;
      WHEN 2 THEN
        WITH written AS (
          INSERT INTO "oncebox".message_2 AS m (id, lane, key, subject, ordering_key, headers, payload)
          SELECT g.id, g.lane, g.key, g.subject, g.ordering_key, g.headers, g.payload
          FROM unnest(ids, lanes, keys, subjects, ordering_keys, append.headers, payloads)
            AS g (id, lane, key, subject, ordering_key, headers, payload)
          WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
            AND (is_moved OR NOT EXISTS (SELECT FROM "oncebox".message_1 AS b WHERE b.key = g.key)
                         AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = g.key))
          ORDER BY g.id
          ON CONFLICT ON CONSTRAINT message_2_key_unique DO NOTHING
          RETURNING m.id
        )
        SELECT array_agg(w.id) INTO written_ids FROM written AS w;
      WHEN 3 THEN
        WITH written AS (
          INSERT INTO "oncebox".message_3 AS m (id, lane, key, subject, ordering_key, headers, payload)
          SELECT g.id, g.lane, g.key, g.subject, g.ordering_key, g.headers, g.payload
          FROM unnest(ids, lanes, keys, subjects, ordering_keys, append.headers, payloads)
            AS g (id, lane, key, subject, ordering_key, headers, payload)
          WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
            AND (is_moved OR NOT EXISTS (SELECT FROM "oncebox".message_2 AS b WHERE b.key = g.key)
                         AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = g.key))
          ORDER BY g.id
          ON CONFLICT ON CONSTRAINT message_3_key_unique DO NOTHING
          RETURNING m.id
        )
        SELECT array_agg(w.id) INTO written_ids FROM written AS w;
      WHEN 4 THEN
        WITH written AS (
          INSERT INTO "oncebox".message_4 AS m (id, lane, key, subject, ordering_key, headers, payload)
          SELECT g.id, g.lane, g.key, g.subject, g.ordering_key, g.headers, g.payload
          FROM unnest(ids, lanes, keys, subjects, ordering_keys, append.headers, payloads)
            AS g (id, lane, key, subject, ordering_key, headers, payload)
          WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
            AND (is_moved OR NOT EXISTS (SELECT FROM "oncebox".message_3 AS b WHERE b.key = g.key)
                         AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = g.key))
          ORDER BY g.id
          ON CONFLICT ON CONSTRAINT message_4_key_unique DO NOTHING
          RETURNING m.id
        )
        SELECT array_agg(w.id) INTO written_ids FROM written AS w;
      WHEN 5 THEN
        WITH written AS (
          INSERT INTO "oncebox".message_5 AS m (id, lane, key, subject, ordering_key, headers, payload)
          SELECT g.id, g.lane, g.key, g.subject, g.ordering_key, g.headers, g.payload
          FROM unnest(ids, lanes, keys, subjects, ordering_keys, append.headers, payloads)
            AS g (id, lane, key, subject, ordering_key, headers, payload)
          WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
            AND (is_moved OR NOT EXISTS (SELECT FROM "oncebox".message_4 AS b WHERE b.key = g.key)
                         AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = g.key))
          ORDER BY g.id
          ON CONFLICT ON CONSTRAINT message_5_key_unique DO NOTHING
          RETURNING m.id
        )
        SELECT array_agg(w.id) INTO written_ids FROM written AS w;
      WHEN 6 THEN
        WITH written AS (
          INSERT INTO "oncebox".message_6 AS m (id, lane, key, subject, ordering_key, headers, payload)
          SELECT g.id, g.lane, g.key, g.subject, g.ordering_key, g.headers, g.payload
          FROM unnest(ids, lanes, keys, subjects, ordering_keys, append.headers, payloads)
            AS g (id, lane, key, subject, ordering_key, headers, payload)
          WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
            AND (is_moved OR NOT EXISTS (SELECT FROM "oncebox".message_5 AS b WHERE b.key = g.key)
                         AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = g.key))
          ORDER BY g.id
          ON CONFLICT ON CONSTRAINT message_6_key_unique DO NOTHING
          RETURNING m.id
        )
        SELECT array_agg(w.id) INTO written_ids FROM written AS w;
      WHEN 7 THEN
        WITH written AS (
          INSERT INTO "oncebox".message_7 AS m (id, lane, key, subject, ordering_key, headers, payload)
          SELECT g.id, g.lane, g.key, g.subject, g.ordering_key, g.headers, g.payload
          FROM unnest(ids, lanes, keys, subjects, ordering_keys, append.headers, payloads)
            AS g (id, lane, key, subject, ordering_key, headers, payload)
          WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
            AND (is_moved OR NOT EXISTS (SELECT FROM "oncebox".message_6 AS b WHERE b.key = g.key)
                         AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = g.key))
          ORDER BY g.id
          ON CONFLICT ON CONSTRAINT message_7_key_unique DO NOTHING
          RETURNING m.id
        )
        SELECT array_agg(w.id) INTO written_ids FROM written AS w;
      ELSE
        RAISE EXCEPTION 'the sequence "turn" has no value' USING ERRCODE = '55000',
          HINT = 'Run `oncebox migrate`, which gives it one; a relay does so within a minute.';
    END CASE;
    IF pg_sequence_last_value('"oncebox".turn') = this_turn THEN
      RETURN coalesce(written_ids, '{}');
    END IF;
  END LOOP;
  RAISE EXCEPTION 'the message log turned five times in a moment' USING ERRCODE = '40001';
END $$;

CREATE FUNCTION oncebox.arrived_keys(scope text, keys text[]) RETURNS SETOF text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
  tenants text[] := ARRAY(
    WITH RECURSIVE found AS (
      (SELECT i.tenant FROM "oncebox".inbox AS i WHERE i.scope = $1 ORDER BY i.tenant LIMIT 1)
      UNION ALL
      SELECT next.tenant
      FROM found AS f
      CROSS JOIN LATERAL (
        SELECT i.tenant FROM "oncebox".inbox AS i WHERE i.scope = $1 AND i.tenant > f.tenant ORDER BY i.tenant LIMIT 1
      ) AS next
    )
    SELECT f.tenant::text FROM found AS f LIMIT 65
  );
BEGIN
  IF cardinality(tenants) > 64 THEN
    RAISE EXCEPTION 'inbox % has more than 64 tenants, so no key can be looked for in it: end what is expected there with `oncebox expect remove`', $1
      USING ERRCODE = 'OB011';
  END IF;
  RETURN QUERY
  SELECT k.key
  FROM unnest($2) AS k (key)
  WHERE EXISTS (
    SELECT
    FROM unnest(tenants) AS t (tenant)
    CROSS JOIN LATERAL (
      SELECT FROM "oncebox".inbox AS i WHERE i.scope = $1 AND i.tenant = t.tenant AND i.key = k.key OFFSET 0
    ) AS i
  );
END $_$;

COMMENT ON FUNCTION oncebox.arrived_keys(scope text, keys text[]) IS 'For relays: which of these keys an inbox of this database has.';

CREATE FUNCTION oncebox.ask_saga(saga_id bigint, step text, kind text, reply jsonb DEFAULT NULL::jsonb) RETURNS text[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  instance record;
  asked text[];
BEGIN
  SELECT s.key, s.state, s.direction INTO instance FROM "oncebox".saga AS s WHERE s.id = ask_saga.saga_id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no saga %', ask_saga.saga_id USING ERRCODE = 'OB009';
  END IF;
  IF instance.state <> 'stuck' THEN
    RAISE EXCEPTION 'saga "%" is %, not stuck: no step of it waits for an operator', instance.key, instance.state
      USING ERRCODE = 'OB009';
  END IF;
  WITH waiting AS (
    SELECT t.step, t.attempt, t.undo_attempt
    FROM "oncebox".saga_step AS t
    WHERE t.saga_id = ask_saga.saga_id AND (ask_saga.step IS NULL OR t.step = ask_saga.step)
      AND CASE instance.direction WHEN 'forward' THEN t.state IN ('rejected', 'failed') ELSE t.state = 'undo-failed' END
      -- Asked for once, it is done once.
      AND NOT EXISTS (
        SELECT FROM "oncebox".saga_event AS e WHERE e.key = instance.key AND e.step = t.step AND e.kind IN ('retry', 'skip')
      )
  ),
  inserted AS (
    INSERT INTO "oncebox".saga_event (key, is_orphan, kind, step, attempt, is_undo, payload)
    SELECT instance.key, false, ask_saga.kind, w.step,
           CASE instance.direction WHEN 'forward' THEN w.attempt ELSE w.undo_attempt END, instance.direction = 'backward',
           coalesce(convert_to(ask_saga.reply::text, 'UTF8'), '')
    FROM waiting AS w
    ORDER BY w.step
    RETURNING saga_event.step
  )
  SELECT array_agg(i.step ORDER BY i.step) INTO asked FROM inserted AS i;
  IF asked IS NULL THEN
    RAISE EXCEPTION 'step "%" of saga "%" does not wait for an operator, or one has acted on it already', ask_saga.step, instance.key
      USING ERRCODE = 'OB009';
  END IF;
  UPDATE "oncebox".saga AS s
  SET due_at = clock_timestamp(), changed_at = clock_timestamp(), revision = s.revision + 1
  WHERE s.id = ask_saga.saga_id;
  RETURN asked;
END $$;

COMMENT ON FUNCTION oncebox.ask_saga(saga_id bigint, step text, kind text, reply jsonb) IS 'The common part of retry_saga() and skip_saga_step(): an event for each step that waits, and an orchestrator that looks at once.';

CREATE FUNCTION oncebox.attempt_failed(scope text, key text, tenant text DEFAULT ''::text, stream text DEFAULT NULL::text, stream_sequence bigint DEFAULT NULL::bigint, stored_at timestamp with time zone DEFAULT NULL::timestamp with time zone, reason text DEFAULT NULL::text, subject text DEFAULT NULL::text, pause double precision DEFAULT NULL::double precision, pause_max double precision DEFAULT NULL::double precision, failures bigint DEFAULT NULL::bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  failed bigint;
  longest double precision := CASE WHEN attempt_failed.pause_max IS NOT NULL
    THEN least(attempt_failed.pause_max, "oncebox".retention_max()) END;
BEGIN
  IF attempt_failed.key IS NULL THEN
    PERFORM "oncebox".refuse_null(true, false);
  END IF;
  PERFORM "oncebox".check_inbox_names(attempt_failed.scope, attempt_failed.tenant), "oncebox".check_key(attempt_failed.key), "oncebox".check_stored_at(attempt_failed.stored_at);
  IF attempt_failed.pause < 0 OR attempt_failed.pause_max < 0
     OR num_nulls(attempt_failed.pause, attempt_failed.pause_max) = 1 THEN
    RAISE EXCEPTION 'pause % and pause_max % are not both 0 seconds or more', attempt_failed.pause, attempt_failed.pause_max
      USING ERRCODE = 'OB011', HINT = 'Leave them out when you do not know when the message is delivered again.';
  END IF;
  IF attempt_failed.failures < 0 THEN
    RAISE EXCEPTION 'failures is %, which is no count', attempt_failed.failures
      USING ERRCODE = 'OB011', HINT = 'Leave it out where nothing else counts the attempts.';
  END IF;
  INSERT INTO "oncebox".inbox_attempt AS a
    (scope, tenant, key, message, failures, reason, failed_at, due_at, stream, stream_sequence, subject)
  VALUES (attempt_failed.scope, attempt_failed.tenant, attempt_failed.key,
          "oncebox".inbox_copy(attempt_failed.stream, attempt_failed.stream_sequence, attempt_failed.stored_at), coalesce(attempt_failed.failures, 1),
          "oncebox".bounded_reason(attempt_failed.reason), clock_timestamp(),
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

COMMENT ON FUNCTION oncebox.attempt_failed(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, reason text, subject text, pause double precision, pause_max double precision, failures bigint) IS 'Counts a failed attempt at a message, after its rollback; returns how many have failed. The rest is for operators: reason, subject, and when it is delivered again, after pause seconds that double with each failure up to pause_max; for a fixed pause both are the same. failures: how many have failed, where something else counts them, as claim_leased() does.';

CREATE FUNCTION oncebox.backlog() RETURNS TABLE(lane smallint, id bigint, key text, subject text, action text)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  -- Rows of another cluster compare with its snapshot, as in read_reset.sql.
  SELECT m.lane, m.id, m.key, m.subject, 'discard'
  FROM "oncebox".lane_cursor AS c
  JOIN "oncebox".log AS m ON m.lane = c.lane
  WHERE m.id > c.floor
    AND (m.id > c.high
      OR NOT pg_visible_in_snapshot(m.xact, c.snap)
        AND (c.target IS NULL OR m.id > c.after OR NOT pg_visible_in_snapshot(m.xact, c.target)))
    AND NOT EXISTS (SELECT FROM "oncebox".discarded AS d WHERE d.lane = m.lane AND d.id = m.id)
  UNION ALL
  SELECT p.lane, p.id, p.key, p.subject, CASE p.replay WHEN 0 THEN 'discard' ELSE 'cancel' END
  FROM "oncebox".parked AS p
  UNION ALL
  SELECT NULL, d.id, d.key, d.subject, 'cancel'
  FROM "oncebox".delayed AS d
$$;

CREATE FUNCTION oncebox.before_edit(key text) RETURNS SETOF text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
  SELECT "oncebox".edit_root($1)
  UNION ALL
  SELECT "oncebox".edit_root($1) || ':oncebox-edit-' || earlier
  FROM substring($1 FROM ':oncebox-edit-([1-9][0-9]{0,8})$') AS number,
    generate_series(greatest(number::integer - 100, 1), number::integer - 1) AS earlier
$_$;

CREATE FUNCTION oncebox.begin_attempt(scope text, key text, tenant text DEFAULT ''::text, stream text DEFAULT NULL::text, stream_sequence bigint DEFAULT NULL::bigint, stored_at timestamp with time zone DEFAULT NULL::timestamp with time zone, subject text DEFAULT NULL::text, attempts_max bigint DEFAULT 20, is_alone boolean DEFAULT false) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  copy text;
  past record;
  untraced text := 'the attempt left no trace: did it end the process?';
BEGIN
  IF begin_attempt.key IS NULL THEN
    PERFORM "oncebox".refuse_null(true, false);
  END IF;
  PERFORM "oncebox".check_inbox_names(begin_attempt.scope, begin_attempt.tenant), "oncebox".check_key(begin_attempt.key),
          "oncebox".check_stored_at(begin_attempt.stored_at);
  copy := "oncebox".inbox_copy(begin_attempt.stream, begin_attempt.stream_sequence, begin_attempt.stored_at);
  -- Of a key that has ended, or is in flight, the claim finds out which.
  IF NOT pg_try_advisory_xact_lock("oncebox".inbox_lock(begin_attempt.scope, begin_attempt.tenant, begin_attempt.key)) OR EXISTS (
    SELECT
    FROM "oncebox".inbox AS i
    JOIN "oncebox".inbox_scope AS s ON s.scope = i.scope
    WHERE i.scope = begin_attempt.scope AND i.tenant = begin_attempt.tenant AND i.key = begin_attempt.key
      AND NOT coalesce(i.created_at < statement_timestamp() - make_interval(secs => s.retention_seconds), false)
  ) THEN
    RETURN 'run';
  END IF;
  IF "oncebox".pause_left(begin_attempt.scope, begin_attempt.key, begin_attempt.tenant, begin_attempt.stream,
                         begin_attempt.stream_sequence, begin_attempt.stored_at) > 0.02 THEN
    RETURN 'wait';
  END IF;
  SELECT a.failures, a.begun INTO past
  FROM "oncebox".inbox_attempt AS a
  WHERE a.scope = begin_attempt.scope AND a.tenant = begin_attempt.tenant AND a.key = begin_attempt.key AND a.message = copy;
  -- Three runs alone that end their process are enough.
  IF past.begun > 3 OR past.failures + greatest(past.begun - 1, 0) >= begin_attempt.attempts_max THEN
    RETURN 'dead';
  END IF;
  IF past.begun > 0 AND begin_attempt.is_alone IS NOT TRUE THEN
    RETURN 'alone';
  END IF;
  INSERT INTO "oncebox".inbox_attempt AS a (scope, tenant, key, message, begun, stream, stream_sequence, subject)
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

COMMENT ON FUNCTION oncebox.begin_attempt(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, subject text, attempts_max bigint, is_alone boolean) IS 'Records, in a transaction of its own before the claim, that a message which was delivered before is run again; attempt_failed(), forget_attempts() or cancel_attempt() ends it. Answers run (claim it), wait (its pause is not over: ask for it again after pause_left() seconds), alone (an earlier run left no trace: wait until no other such message runs in this process, and call again with is_alone), dead (its runs end their processes, or attempts_max is reached: bury it).';

CREATE FUNCTION oncebox.begin_canary(kind text, lanes smallint[], ids bigint[], watch_seconds double precision, by text, note text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  begun bigint;
  taken integer;
  keyless bigint;
BEGIN
  IF begin_canary.kind IS NULL OR begin_canary.kind NOT IN ('letter', 'message') THEN
    RAISE EXCEPTION 'a canary is of kind letter or message' USING ERRCODE = 'OB011';
  ELSIF begin_canary.watch_seconds IS NULL OR begin_canary.watch_seconds NOT BETWEEN 1 AND 86400 THEN
    RAISE EXCEPTION 'a canary waits for a verdict for 1 to 86400 seconds' USING ERRCODE = 'OB011';
  ELSIF cardinality(begin_canary.ids) > 100000 THEN
    RAISE EXCEPTION 'a canary has at most 100000 rows' USING ERRCODE = 'OB011', HINT = 'Select less.';
  ELSIF (SELECT count(*) FROM "oncebox".canary AS k WHERE k.state = 'running') >= 8 THEN
    RAISE EXCEPTION 'eight canaries are running' USING ERRCODE = 'OB011', HINT = 'Wait for one, or stop one: oncebox canary list';
  END IF;
  SELECT d.id INTO keyless
  FROM "oncebox".dead_letter AS d
  WHERE begin_canary.kind = 'letter' AND d.id = ANY (begin_canary.ids) AND d.key IS NULL
  LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'dead letter % has no key, so its inbox shows no verdict on it', keyless
      USING ERRCODE = 'OB011', HINT = 'Leave it out of the selection, or retry without a canary.';
  END IF;
  INSERT INTO "oncebox".canary AS k (kind, watch_seconds, operator, note, command)
  VALUES (begin_canary.kind, begin_canary.watch_seconds, begin_canary.by, begin_canary.note,
          coalesce(nullif(current_setting('oncebox.command', true), ''), 'transaction ' || pg_current_xact_id()))
  RETURNING k.id INTO begun;
  IF begin_canary.kind = 'letter' THEN
    INSERT INTO "oncebox".canary_row (canary, place, id, died_at, scope, tenant, key)
    SELECT begun, row_number() OVER (ORDER BY d.id), d.id, d.created_at, d.scope, d.tenant, d.key
    FROM "oncebox".dead_letter AS d
    WHERE d.id = ANY (begin_canary.ids);
  ELSE
    INSERT INTO "oncebox".canary_row (canary, place, lane, id, died_at, key)
    SELECT begun, row_number() OVER (ORDER BY p.id), p.lane, p.id, p.dead_at, p.key
    FROM unnest(begin_canary.lanes, begin_canary.ids) AS s (lane, id)
    JOIN "oncebox".parked AS p ON p.lane = s.lane AND p.id = s.id
    WHERE p.dead_at IS NOT NULL;
  END IF;
  GET DIAGNOSTICS taken = ROW_COUNT;
  IF taken = 0 THEN
    RAISE EXCEPTION 'none of these rows is dead any more; nothing was begun' USING ERRCODE = 'OB011';
  END IF;
  UPDATE "oncebox".canary AS k SET selected = taken WHERE k.id = begun;
  INSERT INTO "oncebox".audit (operator, note, action, messages, reason)
  VALUES (begin_canary.by, begin_canary.note, 'begin-canary', taken, format('canary %s', begun));
  RETURN begun;
END $$;

COMMENT ON FUNCTION oncebox.begin_canary(kind text, lanes smallint[], ids bigint[], watch_seconds double precision, by text, note text) IS 'For operators: has these dead letters (kind letter), or dead messages of these lanes (kind message), retried in steps by the relays. watch_seconds: how long a retried row may be without a verdict. Returns the id of the canary.';

CREATE FUNCTION oncebox.begin_effect(scope text, key text, owner uuid, epoch bigint, lease interval, step text, tenant text DEFAULT ''::text, OUT answer text, OUT result json, OUT reason text, OUT age interval, OUT is_own boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  effect record;
BEGIN
  IF begin_effect.step IS NULL OR octet_length(begin_effect.step) NOT BETWEEN 1 AND 64 OR begin_effect.step ~ '[^!-~]' THEN
    RAISE EXCEPTION 'step % is not 1 to 64 bytes of printable ASCII without spaces', coalesce('"' || left(begin_effect.step, 300) || '"', 'null')
      USING ERRCODE = 'OB011', HINT = 'It names the effect among those of the message, for example "gateway-charge".';
  END IF;
  PERFORM "oncebox".refuse_uncommitted(c.xmin, 'the claim, or its renewal,')
  FROM "oncebox".inbox_claim AS c
  WHERE c.scope = begin_effect.scope AND c.tenant = begin_effect.tenant AND c.key = begin_effect.key;
  IF NOT "oncebox".renew_lease(begin_effect.scope, begin_effect.key, begin_effect.owner, begin_effect.epoch, begin_effect.lease, begin_effect.tenant) THEN
    answer := 'lost';
    RETURN;
  END IF;
  INSERT INTO "oncebox".inbox_effect (scope, tenant, key, step, epoch)
  VALUES (begin_effect.scope, begin_effect.tenant, begin_effect.key, begin_effect.step, begin_effect.epoch)
  ON CONFLICT ON CONSTRAINT inbox_effect_pkey DO NOTHING;
  IF FOUND THEN
    answer := 'begun';
    RETURN;
  END IF;
  SELECT e.state, e.result, e.epoch, clock_timestamp() - e.started_at AS age INTO effect
  FROM "oncebox".inbox_effect AS e
  WHERE e.scope = begin_effect.scope AND e.tenant = begin_effect.tenant AND e.key = begin_effect.key AND e.step = begin_effect.step;
  answer := CASE effect.state WHEN 'started' THEN 'open' ELSE effect.state END;
  IF answer = 'done' THEN
    result := convert_from(effect.result, 'UTF8')::json;
  ELSIF answer = 'rejected' THEN
    reason := convert_from(effect.result, 'UTF8');
  ELSE
    age := greatest(effect.age, interval '0');
    is_own := effect.epoch = begin_effect.epoch;
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.begin_effect(scope text, key text, owner uuid, epoch bigint, lease interval, step text, tenant text, OUT answer text, OUT result json, OUT reason text, OUT age interval, OUT is_own boolean) IS 'Records that an effect outside the database may happen from now on: begun (COMMIT, then call the provider with the key key:step), done or rejected (it ended before, with its result or reason: do not call), open (an earlier run began it, its age ago, and its outcome is unknown: ask the provider; is_own: this claim began it), lost (the lease is). It renews the lease.';

CREATE FUNCTION oncebox.begin_effect_again(scope text, key text, owner uuid, epoch bigint, lease interval, step text, tenant text DEFAULT ''::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF NOT "oncebox".renew_lease(begin_effect_again.scope, begin_effect_again.key, begin_effect_again.owner, begin_effect_again.epoch,
                              begin_effect_again.lease, begin_effect_again.tenant) THEN
    RETURN false;
  END IF;
  UPDATE "oncebox".inbox_effect AS e
  SET started_at = clock_timestamp(), epoch = begin_effect_again.epoch
  WHERE e.scope = begin_effect_again.scope AND e.tenant = begin_effect_again.tenant AND e.key = begin_effect_again.key
    AND e.step = begin_effect_again.step AND e.state = 'started';
  IF NOT FOUND THEN
    RAISE EXCEPTION 'effect "%" of key "%" is not open', left(begin_effect_again.step, 300), left(begin_effect_again.key, 300)
      USING ERRCODE = 'OB010', HINT = 'begin_effect_again() follows on begin_effect() that answered "open".';
  END IF;
  RETURN true;
END $$;

COMMENT ON FUNCTION oncebox.begin_effect_again(scope text, key text, owner uuid, epoch bigint, lease interval, step text, tenant text) IS 'Before an open effect is called again, because the provider knows nothing of it, or because it answers one key once; false: the lease is lost.';

CREATE FUNCTION oncebox.bound_kept() RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  SELECT "oncebox".forget_kept();
  DELETE FROM "oncebox".kept AS k
  WHERE k.audit <= (
    SELECT max(o.audit)
    FROM (
      SELECT n.audit, row_number() OVER newest AS place, sum(n.bytes) OVER newest AS bytes
      FROM "oncebox".kept AS n
      WINDOW newest AS (ORDER BY n.audit DESC)
    ) AS o
    WHERE o.place > 100000 OR o.bytes > 1073741824
  )
$$;

COMMENT ON FUNCTION oncebox.bound_kept() IS 'Private: forgets the oldest discarded rows beyond the bounds.';

CREATE FUNCTION oncebox.bounded_reason(reason text) RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    AS $$
DECLARE
  kept text := coalesce(nullif(left(reason, 1000), ''), 'no reason given');
BEGIN
  WHILE octet_length(convert_to(kept, 'UTF8')) > 1000 LOOP
    kept := left(kept, -((octet_length(convert_to(kept, 'UTF8')) - 997) / 4));
  END LOOP;
  RETURN kept;
END $$;

CREATE FUNCTION oncebox.bury(scope text, key text, payload bytea, reason text, subject text, headers jsonb DEFAULT '{}'::jsonb, tenant text DEFAULT ''::text, message_id bigint DEFAULT NULL::bigint, stream text DEFAULT NULL::text, stream_sequence bigint DEFAULT NULL::bigint, stored_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deliveries bigint DEFAULT 1, committed_by xid8 DEFAULT NULL::xid8) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  fingerprint bytea;
  kept text := "oncebox".bounded_reason(bury.reason);
  answer text;
BEGIN
  IF bury.payload IS NULL OR bury.subject IS NULL THEN
    PERFORM "oncebox".refuse_null(false, bury.payload IS NOT NULL);
  END IF;
  IF jsonb_typeof(bury.headers) <> 'object' THEN
    RAISE EXCEPTION 'headers are a JSON %, not an object', jsonb_typeof(bury.headers) USING ERRCODE = 'OB004';
  END IF;
  IF num_nulls(bury.stream, bury.stream_sequence, bury.stored_at) NOT IN (0, 3) THEN
    RAISE EXCEPTION 'stream, stream_sequence and stored_at are not given together'
      USING ERRCODE = 'OB011', HINT = 'They say where the message is stored. Leave all of them out for one that is in no stream.';
  END IF;
  PERFORM "oncebox".check_inbox_names(bury.scope, bury.tenant), "oncebox".check_key(bury.key), "oncebox".check_stored_at(bury.stored_at);
  IF bury.key IS NOT NULL THEN
    fingerprint := "oncebox".inbox_fingerprint(bury.payload);
    IF bury.committed_by IS NOT NULL THEN
      DELETE FROM "oncebox".inbox AS i
      WHERE i.scope = bury.scope AND i.tenant = bury.tenant AND i.key = bury.key AND i.xmin = bury.committed_by::xid;
    END IF;
    answer := "oncebox".look_up_leased(bury.scope, bury.tenant, bury.key, fingerprint);
    IF answer IS NULL THEN
      SELECT c.answer INTO answer
      FROM "oncebox".claim_key(bury.scope, bury.tenant, bury.key, fingerprint, bury.message_id, 'dead', convert_to(kept, 'UTF8')) AS c;
    END IF;
    IF answer = 'new' THEN
      PERFORM "oncebox".forget_tries(bury.scope, bury.tenant, bury.key);
    END IF;
  END IF;
  IF bury.key IS NULL OR answer IN ('new', 'mismatch') THEN
    PERFORM "oncebox".record_dead_letter(bury.scope, bury.tenant, bury.key, bury.subject, coalesce(bury.headers, '{}'),
      bury.payload, bury.stream, bury.stream_sequence, bury.stored_at, coalesce(bury.deliveries, 1), kept);
  END IF;
  RETURN CASE WHEN bury.key IS NULL OR answer = 'new' THEN 'dead' ELSE answer END;
END $$;

COMMENT ON FUNCTION oncebox.bury(scope text, key text, payload bytea, reason text, subject text, headers jsonb, tenant text, message_id bigint, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, committed_by xid8) IS 'Gives a message up in a transaction of its own, after its rollback, and records it as a dead letter. Returns the answer to its copies: dead; or the state that forbids it: replayed, rejected, in_flight; or mismatch. A message without a valid key has key NULL. committed_by: the id of the transaction that claimed the key, when the handler has committed it by itself and then failed; its claim is taken back.';

CREATE FUNCTION oncebox.bury_failing(scope text, tenant text, key text, payload bytea, subject text, headers jsonb, stream text, stream_sequence bigint, stored_at timestamp with time zone, failures bigint, reason text, by text, note text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  answer text;
  kept text := "oncebox".bounded_reason('an operator gave it up: ' || bury_failing.reason);
  claimed record;
  -- The operator has a message as its stream has it, which may be without its large payload.
  is_elsewhere boolean := bury_failing.payload = ''
    AND EXISTS (SELECT FROM jsonb_object_keys(bury_failing.headers) AS h (name) WHERE lower(h.name) = 'oncebox-object');
BEGIN
  PERFORM "oncebox".check_stored_at(bury_failing.stored_at);
  IF (SELECT s.mode FROM "oncebox".inbox_scope AS s WHERE s.scope = bury_failing.scope) IS DISTINCT FROM 'lease' THEN
    answer := "oncebox".bury(bury_failing.scope, bury_failing.key, bury_failing.payload, kept, bury_failing.subject,
      bury_failing.headers, bury_failing.tenant, NULL, bury_failing.stream, bury_failing.stream_sequence,
      bury_failing.stored_at, bury_failing.failures);
    INSERT INTO "oncebox".audit (operator, note, action, scope, key, subject, reason)
    SELECT bury_failing.by, bury_failing.note, 'bury', bury_failing.scope, bury_failing.key, bury_failing.subject,
           bury_failing.reason
    WHERE answer = 'dead';
    RETURN answer;
  END IF;
  UPDATE "oncebox".inbox_claim AS c
  SET state = 'running', reason = NULL
  WHERE c.scope = bury_failing.scope
    AND c.tenant = bury_failing.tenant
    AND c.key = bury_failing.key
    AND (c.fingerprint = "oncebox".inbox_fingerprint(bury_failing.payload) OR is_elsewhere)
    AND (c.state <> 'running' OR c.lease_until < clock_timestamp())
  RETURNING c.owner, c.epoch INTO claimed;
  IF NOT FOUND THEN
    RETURN CASE WHEN EXISTS (
      SELECT
      FROM "oncebox".inbox AS i
      WHERE i.scope = bury_failing.scope AND i.tenant = bury_failing.tenant AND i.key = bury_failing.key
    ) THEN 'replayed' ELSE 'in_flight' END;
  END IF;
  PERFORM "oncebox".give_up_leased(bury_failing.scope, bury_failing.tenant, bury_failing.key, claimed.owner, claimed.epoch,
    bury_failing.subject, bury_failing.headers, bury_failing.payload, bury_failing.stream, bury_failing.stream_sequence,
    bury_failing.stored_at, bury_failing.failures, kept);
  INSERT INTO "oncebox".audit (operator, note, action, scope, key, subject, reason)
  VALUES (bury_failing.by, bury_failing.note, 'bury', bury_failing.scope, bury_failing.key, bury_failing.subject,
          bury_failing.reason);
  RETURN 'dead';
END $$;

COMMENT ON FUNCTION oncebox.bury_failing(scope text, tenant text, key text, payload bytea, subject text, headers jsonb, stream text, stream_sequence bigint, stored_at timestamp with time zone, failures bigint, reason text, by text, note text) IS 'For operators: gives a message up that fails, in either mode of its scope. Answers dead; or replayed, rejected, in_flight, mismatch, when that decides instead.';

CREATE FUNCTION oncebox.bury_leased(scope text, key text, owner uuid, epoch bigint, payload bytea, reason text, subject text, headers jsonb DEFAULT '{}'::jsonb, tenant text DEFAULT ''::text, stream text DEFAULT NULL::text, stream_sequence bigint DEFAULT NULL::bigint, stored_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deliveries bigint DEFAULT 1) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  open_effects text := (
    SELECT string_agg(format('"%s"', e.step), ', ' ORDER BY e.step)
    FROM "oncebox".inbox_effect AS e
    WHERE e.scope = bury_leased.scope AND e.tenant = bury_leased.tenant AND e.key = bury_leased.key AND e.state = 'started'
  );
  kept text := "oncebox".bounded_reason(bury_leased.reason);
BEGIN
  -- Also when the last run came to another end: an operator has to find out about these effects.
  IF open_effects IS NOT NULL AND strpos(kept, format('effect %s is unknown', open_effects)) = 0 THEN
    kept := "oncebox".bounded_reason(left(kept, 800) || format('; the outcome of effect %s is unknown', left(open_effects, 150)));
  END IF;
  IF bury_leased.payload IS NULL OR bury_leased.subject IS NULL THEN
    PERFORM "oncebox".refuse_null(false, bury_leased.payload IS NOT NULL);
  END IF;
  IF jsonb_typeof(bury_leased.headers) <> 'object' THEN
    RAISE EXCEPTION 'headers are a JSON %, not an object', jsonb_typeof(bury_leased.headers) USING ERRCODE = 'OB004';
  END IF;
  IF num_nulls(bury_leased.stream, bury_leased.stream_sequence, bury_leased.stored_at) NOT IN (0, 3) THEN
    RAISE EXCEPTION 'stream, stream_sequence and stored_at are not given together'
      USING ERRCODE = 'OB011', HINT = 'They say where the message is stored. Leave all of them out for one that is in no stream.';
  END IF;
  PERFORM "oncebox".check_stored_at(bury_leased.stored_at);
  RETURN "oncebox".give_up_leased(bury_leased.scope, bury_leased.tenant, bury_leased.key, bury_leased.owner, bury_leased.epoch,
    bury_leased.subject, coalesce(bury_leased.headers, '{}'), bury_leased.payload, bury_leased.stream,
    bury_leased.stream_sequence, bury_leased.stored_at, coalesce(bury_leased.deliveries, 1), kept);
END $$;

COMMENT ON FUNCTION oncebox.bury_leased(scope text, key text, owner uuid, epoch bigint, payload bytea, reason text, subject text, headers jsonb, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint) IS 'Gives a message up: ends its claim as dead and records the dead letter, in a transaction of its own. The reason names the effects that may have happened; the records of all stay, so that a retry calls none of them again. False: the lease is lost, and nothing is written. Call bury() for a mismatch, and for a message without a valid key.';

CREATE TABLE oncebox.canary_row (
    canary bigint NOT NULL,
    place integer NOT NULL,
    lane smallint,
    id bigint NOT NULL,
    died_at timestamp with time zone NOT NULL,
    scope text COLLATE pg_catalog."C",
    tenant text,
    key text NOT NULL COLLATE pg_catalog."C",
    state text DEFAULT 'waiting'::text NOT NULL COLLATE pg_catalog."C",
    retried_at timestamp with time zone,
    last_letter bigint,
    settled_at timestamp with time zone,
    CONSTRAINT canary_row_state CHECK ((state = ANY (ARRAY['waiting'::text, 'watched'::text, 'good'::text, 'failed'::text, 'skipped'::text])))
);

COMMENT ON TABLE oncebox.canary_row IS 'The rows of a canary, as they were when it began.';

COMMENT ON COLUMN oncebox.canary_row.died_at IS 'A row that has died again since is another one.';

COMMENT ON COLUMN oncebox.canary_row.last_letter IS 'The last id of a dead letter when this one was retried.';

COMMENT ON COLUMN oncebox.canary_row.settled_at IS 'Of a key that was settled with another payload before: when.';

CREATE FUNCTION oncebox.canary_row_name(r oncebox.canary_row) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  SELECT format('%s %s, key %s', CASE WHEN r.lane IS NULL THEN 'dead letter' ELSE 'message' END, r.id, r.key)
$$;

CREATE FUNCTION oncebox.canary_verdict(r oncebox.canary_row, OUT verdict text, OUT why text) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF r.lane IS NOT NULL THEN
    SELECT CASE WHEN p.dead_at IS NOT NULL OR p.attempts > 0 THEN 'failed' ELSE 'watched' END, p.error
    INTO verdict, why
    FROM "oncebox".parked AS p
    WHERE p.lane = r.lane AND p.id = r.id;
    verdict := coalesce(verdict, CASE
      WHEN EXISTS (SELECT FROM "oncebox".discarded AS d WHERE d.lane = r.lane AND d.id = r.id)
        OR EXISTS (SELECT FROM "oncebox".replay AS y WHERE y.lane = r.lane AND y.id = r.id AND y.cancelled = y.number)
        THEN 'skipped'
      ELSE 'good'
    END);
    RETURN;
  END IF;
  SELECT 'failed', d.reason
  INTO verdict, why
  FROM "oncebox".dead_letter AS d
  WHERE d.key = r.key AND d.scope = r.scope AND d.tenant = r.tenant AND (d.id = r.id OR d.id > r.last_letter)
  ORDER BY d.id
  LIMIT 1;
  IF verdict IS NULL THEN
    SELECT CASE WHEN i.status <> 'dead' THEN 'good' WHEN i.fingerprint = '' THEN 'skipped' ELSE 'failed' END,
           'its new dead letter is gone already'
    INTO verdict, why
    FROM "oncebox".inbox AS i
    WHERE i.scope = r.scope AND i.tenant = r.tenant AND i.key = r.key
      AND (i.created_at IS DISTINCT FROM r.settled_at OR i.status = 'dead' AND i.fingerprint = '');
  END IF;
  verdict := coalesce(verdict, 'watched');
END $$;

CREATE FUNCTION oncebox.cancel_attempt(scope text, key text, tenant text DEFAULT ''::text, stream text DEFAULT NULL::text, stream_sequence bigint DEFAULT NULL::bigint, stored_at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
  PERFORM "oncebox".check_stored_at($6);
  UPDATE "oncebox".inbox_attempt AS a
  SET begun = a.begun - 1
  WHERE a.scope = $1 AND a.tenant = $3 AND a.key = $2 AND a.message = "oncebox".inbox_copy($4, $5, $6) AND a.begun > 0;
END $_$;

COMMENT ON FUNCTION oncebox.cancel_attempt(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone) IS 'Takes begin_attempt() back when the run made no attempt: another process works on the key, or PostgreSQL did not answer.';

CREATE FUNCTION oncebox.cancel_delayed(key text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  cancelled bigint;
BEGIN
  IF cancel_delayed.key IS NULL THEN
    RAISE EXCEPTION 'key is null' USING ERRCODE = 'OB002', HINT = 'Name the delayed message to give up.';
  END IF;
  -- Waits for a relay that is moving it, which takes milliseconds; a relay never waits here.
  DELETE FROM "oncebox".delayed AS d
  WHERE d.key = cancel_delayed.key
  RETURNING d.id INTO cancelled;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM "oncebox".delete_placeholders(ARRAY[cancelled]);
  RETURN true;
END $$;

COMMENT ON FUNCTION oncebox.cancel_delayed(key text) IS 'Give a delayed message up in this transaction. True when it will never be sent; false when no message of this key is delayed: it was never enqueued, was cancelled, or has been moved into the log.';

CREATE FUNCTION oncebox.cancel_delayed_messages(keys text[], by text, note text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
  RETURN QUERY
  WITH cancelled AS MATERIALIZED (
    SELECT w.id, w.key, w.subject
    FROM (
      SELECT d.id, d.key, d.subject, "oncebox".cancel_delayed(d.key) AS is_done
      FROM "oncebox".delayed AS d
      WHERE d.key = ANY ($1)
      OFFSET 0
    ) AS w
    WHERE w.is_done
  )
  INSERT INTO "oncebox".audit (operator, note, action, message_id, key, subject, reason)
  SELECT $2, $3, 'cancel', c.id, c.key, c.subject, 'delayed'
  FROM cancelled AS c
  RETURNING message_id;
END $_$;

COMMENT ON FUNCTION oncebox.cancel_delayed_messages(keys text[], by text, note text) IS 'For operators: cancel_delayed() for many keys. Returns the ids of those that were still delayed.';

CREATE FUNCTION oncebox.change_inbox_mode(inbox_scope text, new_mode text, by text DEFAULT NULL::text, note text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  pending bigint;
BEGIN
  IF new_mode IS NULL OR new_mode NOT IN ('transaction', 'lease') THEN
    RAISE EXCEPTION 'mode "%" is neither "transaction" nor "lease"', new_mode USING ERRCODE = 'OB002';
  END IF;
  SELECT count(*) INTO pending FROM "oncebox".inbox_claim AS c WHERE c.scope = $1;
  IF pending > 0 THEN
    RAISE EXCEPTION '% keys of scope "%" are claimed under a lease and have not ended', pending, $1
      USING ERRCODE = 'OB002', HINT = 'Let the processes of the former mode finish them, or give them up.';
  END IF;
  SELECT count(*) INTO pending FROM "oncebox".inbox_effect AS e WHERE e.scope = $1 AND e.state = 'started';
  IF pending > 0 THEN
    RAISE EXCEPTION '% effects of scope "%" may have happened, and nobody has found out', pending, $1
      USING ERRCODE = 'OB002', HINT = 'Retry their dead letters in the former mode, or wait until they are deleted with them.';
  END IF;
  UPDATE "oncebox".inbox_scope AS s SET mode = $2 WHERE s.scope = $1;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'scope "%" is not known', $1
      USING ERRCODE = 'OB002', HINT = 'Scopes are listed in inbox_scope.';
  END IF;
  INSERT INTO "oncebox".audit (operator, note, action, scope, reason) VALUES ($3, $4, 'change-scope', $1, 'mode ' || $2);
END $_$;

COMMENT ON FUNCTION oncebox.change_inbox_mode(inbox_scope text, new_mode text, by text, note text) IS 'Lets a scope claim its keys in the other mode from now on. Stop all processes of the scope first: one that still runs would handle messages a second time.';

CREATE FUNCTION oncebox.change_scope(scope text, retention interval, dead_letter_retention interval, kind text, by text DEFAULT NULL::text, note text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  keys_seconds double precision := extract(epoch FROM change_scope.retention);
  letters_seconds double precision := extract(epoch FROM coalesce(change_scope.dead_letter_retention, interval '90 days'));
BEGIN
  IF coalesce(change_scope.kind NOT IN ('consumer', 'http'), true)
     OR NOT coalesce(keys_seconds, 1) BETWEEN 1 AND "oncebox".retention_max()
     OR NOT letters_seconds BETWEEN 1 AND "oncebox".retention_max() THEN
    RAISE EXCEPTION 'kind "%", retention % and dead_letter_retention % of scope "%" do not fit', change_scope.kind,
      change_scope.retention, change_scope.dead_letter_retention, change_scope.scope
      USING ERRCODE = 'OB011', HINT = 'A kind is consumer or http. Both times are 1 second to 100 years; NULL keeps keys for ever.';
  END IF;
  UPDATE "oncebox".inbox_scope AS s
  SET retention_seconds = keys_seconds,
      dead_letter_seconds = CASE WHEN keys_seconds IS NOT NULL THEN greatest(letters_seconds, keys_seconds) END,
      kind = change_scope.kind,
      registered_at = clock_timestamp()
  WHERE s.scope = change_scope.scope;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'scope "%" is not known', change_scope.scope
      USING ERRCODE = 'OB002', HINT = 'Scopes are listed in inbox_scope.';
  END IF;
  INSERT INTO "oncebox".audit (operator, note, action, scope, reason)
  VALUES (change_scope.by, change_scope.note, 'change-scope', change_scope.scope,
          format('%s, retention %s', change_scope.kind, coalesce(change_scope.retention::text, 'for ever')));
END $$;

COMMENT ON FUNCTION oncebox.change_scope(scope text, retention interval, dead_letter_retention interval, kind text, by text, note text) IS 'For operators: sets how long a scope keeps keys (NULL: for ever) and dead letters (NULL: 90 days, or as long as keys), and its kind. Its processes go by it from their next start on.';

CREATE FUNCTION oncebox.check_barrier(barrier text, tenant text, key text, flag boolean, attempt integer) RETURNS void
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF num_nulls(barrier, tenant, key, flag, attempt) > 0 THEN
    RAISE EXCEPTION '% of a call at the barrier is null', CASE WHEN barrier IS NULL THEN 'the barrier' WHEN tenant IS NULL
      THEN 'the tenant' WHEN key IS NULL THEN 'the key' WHEN attempt IS NULL THEN 'the attempt' ELSE 'the flag' END
      USING ERRCODE = 'OB011', HINT = 'Leave out the attempt if the message has no header Saga-Attempt; the tenant is '''' where there is one.';
  END IF;
  IF octet_length(barrier) NOT BETWEEN 1 AND 255 OR octet_length(key) NOT BETWEEN 1 AND 255 OR octet_length(tenant) > 255 THEN
    RAISE EXCEPTION 'barrier "%", tenant "%" and key "%" are not 1 to 255 bytes each', left(barrier, 300), left(tenant, 300), left(key, 300)
      USING ERRCODE = 'OB011', HINT = 'Only the tenant may be empty. The key is that of the action, without ":undo" and without ":#" and its attempt.';
  END IF;
END $$;

CREATE FUNCTION oncebox.check_edit(old_headers jsonb, old_payload bytea, headers jsonb, payload bytea, seen bytea, note text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  fixed text;
BEGIN
  IF seen IS DISTINCT FROM "oncebox".content_digest(old_headers, old_payload) THEN
    RAISE EXCEPTION 'the message is not the one that was shown'
      USING ERRCODE = 'OB011', HINT = 'Somebody else has edited it, or it died again. Look at it again.';
  ELSIF note IS NULL THEN
    RAISE EXCEPTION 'an edit needs a reason' USING ERRCODE = 'OB011', HINT = 'Say why, for the audit: --note.';
  ELSIF old_headers = headers AND old_payload = payload THEN
    RAISE EXCEPTION 'nothing is changed' USING ERRCODE = 'OB011', HINT = 'Retry it as it is, or change its payload or a header.';
  ELSIF EXISTS (SELECT FROM jsonb_object_keys(old_headers) AS h (name) WHERE lower(h.name) IN ('oncebox-reply-to', 'in-reply-to')) THEN
    RAISE EXCEPTION 'the message belongs to a conversation: an answer goes by its key, and an edit would give it another'
      USING ERRCODE = 'OB011', HINT = 'Retry it as it is; of a saga, retry the step, or skip it with the reply.';
  END IF;
  SELECT min(n.name) INTO fixed
  FROM (SELECT jsonb_object_keys(old_headers || headers)) AS n (name)
  WHERE n.name COLLATE "C" ~* '^(nats-|oncebox-|(x-)?idempotency-key$|ce-id$|ce-dataref$)'
    AND (old_headers -> n.name) IS DISTINCT FROM (headers -> n.name);
  IF fixed IS NOT NULL THEN
    RAISE EXCEPTION 'header "%" is set by Oncebox or commands the broker', left(fixed, 300) USING ERRCODE = 'OB004';
  END IF;
  PERFORM "oncebox".check_payload(payload);
END $_$;

CREATE FUNCTION oncebox.check_end(state text, barrier text, key text, attempt integer) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
  IF check_end.state IS NULL THEN
    RAISE EXCEPTION 'barrier "%": no run of attempt % at "%" is under way', check_end.barrier, check_end.attempt, check_end.key
      USING ERRCODE = 'OB012', HINT = 'Ask the barrier before the effect, end only what it let through, and give the number of the same attempt.';
  END IF;
  RETURN check_end.state;
END $$;

CREATE FUNCTION oncebox.check_enqueued(wanted_key text, wanted_subject text, wanted_payload bytea) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  this_turn bigint := pg_sequence_last_value('"oncebox".turn');
  stored record;
BEGIN
  EXECUTE format($found$
    SELECT m.subject, m.payload FROM "oncebox".message_%s AS m WHERE m.key = $1 AND m.lane <> -1
    UNION ALL
    SELECT m.subject, m.payload FROM "oncebox".message_%s AS m WHERE m.key = $1 AND m.lane <> -1
    UNION ALL
    SELECT d.subject, d.payload FROM "oncebox".delayed AS d WHERE d.key = $1
    LIMIT 1
  $found$, this_turn % 8, (this_turn + 7) % 8) INTO stored USING wanted_key;
  IF stored IS NULL THEN
    RETURN false;
  END IF;
  IF stored.subject <> wanted_subject THEN
    RAISE EXCEPTION 'key "%" is already enqueued with subject "%", not "%"', wanted_key, stored.subject, wanted_subject
      USING ERRCODE = 'OB001', HINT = 'One key names one message. Derive a key for each with step_key() or part_key().';
  END IF;
  IF stored.payload <> wanted_payload THEN
    RAISE EXCEPTION 'key "%" is already enqueued with another payload', wanted_key
      USING ERRCODE = 'OB001', HINT = 'One key names one message. A retry must send the same bytes.';
  END IF;
  RETURN true;
END $_$;

CREATE FUNCTION oncebox.check_expected_inbox(scope text, within_seconds double precision, is_unseen boolean, place text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  inbox "oncebox".inbox_scope;
  known text;
BEGIN
  SELECT s.* INTO inbox FROM "oncebox".inbox_scope AS s WHERE s.scope = check_expected_inbox.scope AND s.kind = 'consumer';
  IF inbox.scope IS NULL AND NOT is_unseen THEN
    SELECT string_agg(k.scope, ', ' ORDER BY k.scope) INTO known
    FROM (SELECT s.scope FROM "oncebox".inbox_scope AS s WHERE s.kind = 'consumer' ORDER BY s.scope LIMIT 10) AS k;
    RAISE EXCEPTION 'no consumer % has registered in %, which has %', check_expected_inbox.scope, place, coalesce(known, 'none')
      USING ERRCODE = 'OB011',
        HINT = 'Correct --handled-by, name the database of the inbox by --in, or say by --unseen that the consumer has never been started.';
  END IF;
  IF within_seconds >= inbox.retention_seconds THEN
    RAISE EXCEPTION 'inbox % keeps its keys for %, so it has forgotten them when they are looked for after %',
      check_expected_inbox.scope, "oncebox".time_text(inbox.retention_seconds), "oncebox".time_text(within_seconds)
      USING ERRCODE = 'OB011', HINT = 'Give a shorter --within, or have the inbox keep its keys for longer (`oncebox inbox scope change`).';
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.check_expected_inbox(scope text, within_seconds double precision, is_unseen boolean, place text) IS 'For operators: whether an inbox of this database can be expected to have keys within a number of seconds after the commit of their messages.';

CREATE FUNCTION oncebox.check_headers(headers jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE STRICT
    AS $_$
DECLARE
  header record;
  value text;
BEGIN
  IF headers = '{}' THEN
    RETURN true;
  END IF;
  IF jsonb_typeof(headers) <> 'object' THEN
    RAISE EXCEPTION 'headers are a JSON %, not an object of strings', jsonb_typeof(headers) USING ERRCODE = 'OB004';
  END IF;
  IF octet_length(headers::text) > 16384 THEN
    RAISE EXCEPTION 'headers are % bytes long; the limit is 16384 bytes', octet_length(headers::text) USING ERRCODE = 'OB004';
  END IF;
  FOR header IN SELECT * FROM jsonb_each(headers) AS h (name, value) LOOP
    value := header.value #>> '{}';
    IF header.name COLLATE "C" !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' OR octet_length(header.name) > 128 THEN
      RAISE EXCEPTION 'header name "%" is not 1 to 128 characters of an HTTP token', left(header.name, 300) USING ERRCODE = 'OB004';
    END IF;
    IF lower(header.name) = 'oncebox-reply-to' AND header.name <> 'Oncebox-Reply-To' THEN
      RAISE EXCEPTION 'header "%" is spelt "Oncebox-Reply-To"', header.name USING ERRCODE = 'OB004';
    END IF;
    IF header.name COLLATE "C" ~* '^(nats-|oncebox-|(x-)?idempotency-key$)' AND header.name <> 'Oncebox-Reply-To' THEN
      RAISE EXCEPTION 'header "%" is set by the relay or commands the broker', header.name USING ERRCODE = 'OB004';
    END IF;
    IF jsonb_typeof(header.value) <> 'string' OR value COLLATE "C" ~ '[\x01-\x08\x0a-\x1f\x7f]' THEN
      RAISE EXCEPTION 'value of header "%" is not a string without control characters', header.name USING ERRCODE = 'OB004';
    END IF;
    IF value COLLATE "C" ~ '^[ \t]|[ \t]$' THEN
      RAISE EXCEPTION 'value of header "%" begins or ends with a blank, which NATS would drop', header.name
        USING ERRCODE = 'OB004', HINT = 'Trim the value, or encode it in ASCII.';
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
      BEGIN
        PERFORM convert_to(value, 'UTF8');
      EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
        RAISE EXCEPTION 'value of header "%" has a byte that cannot be converted to UTF-8', header.name
          USING ERRCODE = 'OB004', HINT = 'Trim the value, or encode it in ASCII.';
      END;
    END IF;
    IF header.name = 'Oncebox-Reply-To' THEN
      PERFORM "oncebox".check_subject(value);
    END IF;
  END LOOP;
  RETURN true;
END $_$;

CREATE FUNCTION oncebox.check_inbox_names(scope text, tenant text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
BEGIN
  IF scope IS NULL OR octet_length(scope) NOT BETWEEN 1 AND 255 OR scope ~ '[\u0001-\u001f\u007f-\u009f]' THEN
    RAISE EXCEPTION 'scope % is not 1 to 255 bytes without control characters', coalesce('"' || left(scope, 300) || '"', 'null')
      USING ERRCODE = 'OB011', HINT = 'A scope says who consumes, for example "payment-service:charge".';
  END IF;
  IF tenant IS NULL OR octet_length(tenant) > 255 OR tenant ~ '[\u0001-\u001f\u007f-\u009f]' THEN
    RAISE EXCEPTION 'tenant % is not 0 to 255 bytes without control characters', coalesce('"' || left(tenant, 300) || '"', 'null')
      USING ERRCODE = 'OB011', HINT = 'Leave it out where there is one tenant.';
  END IF;
  RETURN true;
END $$;

CREATE FUNCTION oncebox.check_key(key text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
DECLARE
  root text;
  number text;
BEGIN
  IF octet_length(key) <= 128 AND key COLLATE "C" ~ '^[!-$&-9;-~]+$' THEN
    RETURN true;
  END IF;
  IF octet_length(key) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'key is % bytes long; the limit is 1 to 255 bytes', octet_length(key)
      USING ERRCODE = 'OB002', HINT = 'Use a shorter root key, or fewer and shorter steps.';
  END IF;
  IF key COLLATE "C" !~ '^([!-$&-9;-~]|%3A|%25)+(:([a-z0-9][a-z0-9._-]*|#(0|[1-9][0-9]*)))*$' THEN
    RAISE EXCEPTION 'key "%" is not ROOT or ROOT:STEP...: visible ASCII, with ":" and "%%" of the root written as %%3A and %%25, steps like [a-z0-9][a-z0-9._-]*', key
      USING ERRCODE = 'OB002', HINT = format('Escape a client''s key with %s.root_key(text), add steps with step_key(key, step).', 'oncebox');
  END IF;
  root := replace(replace(split_part(key, ':', 1), '%3A', ':'), '%25', '%');
  IF octet_length(root) > 128 THEN
    RAISE EXCEPTION 'root of key "%" is % bytes long; the limit is 128 bytes', key, octet_length(root)
      USING ERRCODE = 'OB002';
  END IF;
  IF octet_length(key) > 66 AND key ~ ':[^:]{65}' THEN
    RAISE EXCEPTION 'a step of key "%" is longer than 64 bytes', key USING ERRCODE = 'OB002';
  END IF;
  IF key LIKE '%:undo:undo%' AND key ~ ':undo:undo(:|$)' THEN
    RAISE EXCEPTION 'key "%" undoes an undo', key USING ERRCODE = 'OB002';
  END IF;
  IF key LIKE '%:#%' THEN
    FOR number IN SELECT matches[1] FROM regexp_matches(key, ':#([0-9]+)', 'g') AS matches LOOP
      IF length(number) > 10 OR number::bigint > 4294967295 THEN
        RAISE EXCEPTION 'part #% of key "%" is above 4294967295', number, key USING ERRCODE = 'OB002';
      END IF;
    END LOOP;
  END IF;
  RETURN true;
END $_$;

COMMENT ON FUNCTION oncebox.check_key(key text) IS 'True when this is a valid key; otherwise an error that says why not.';

CREATE FUNCTION oncebox.check_lease(owner uuid, lease interval) RETURNS void
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
BEGIN
  IF owner IS NULL THEN
    RAISE EXCEPTION 'owner is null' USING ERRCODE = 'OB011', HINT = 'An owner is a new random UUID for each claim.';
  END IF;
  IF lease IS NULL OR extract(epoch FROM lease) NOT BETWEEN 0.1 AND 3600 THEN
    RAISE EXCEPTION 'lease % is not 100 milliseconds to 1 hour', lease
      USING ERRCODE = 'OB011', HINT = 'Renew it every third of its time.';
  END IF;
END $$;

CREATE FUNCTION oncebox.check_message(key text, subject text, ordering_key text, headers jsonb, payload bytea) RETURNS void
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF key IS NULL OR subject IS NULL OR payload IS NULL THEN
    PERFORM "oncebox".refuse_null(key IS NULL, subject IS NULL);
  END IF;
  PERFORM "oncebox".check_key(key), "oncebox".check_subject(subject), "oncebox".check_ordering_key(ordering_key),
    "oncebox".check_headers(headers), "oncebox".check_payload(payload);
  IF starts_with(subject, 'oncebox.events.') THEN
    RAISE EXCEPTION 'subject "%" is one of Oncebox''s own events', left(subject, 300)
      USING ERRCODE = 'OB003', HINT = 'Programs trust these to come from Oncebox: choose another subject.';
  END IF;
END $$;

CREATE FUNCTION oncebox.check_ordering_key(ordering_key text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
BEGIN
  IF octet_length(ordering_key) NOT BETWEEN 1 AND 255 OR ordering_key COLLATE "C" !~ '^[!-~]+$' THEN
    RAISE EXCEPTION 'ordering key "%" is not 1 to 255 bytes of visible ASCII', left(ordering_key, 300)
      USING ERRCODE = 'OB006', HINT = 'Leave it NULL for messages that need no order.';
  END IF;
  RETURN true;
END $_$;

CREATE FUNCTION oncebox.check_payload(payload bytea) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
BEGIN
  IF octet_length(payload) > 67108864 THEN
    RAISE EXCEPTION 'payload is % bytes long; the limit is 67108864 bytes (64 MiB)', octet_length(payload)
      USING ERRCODE = 'OB005', HINT = 'Store larger bodies elsewhere and send a reference. The relay sends more than 8 MiB, and more than the max_payload of nats-server, with --object-store only.';
  END IF;
  RETURN true;
END $$;

CREATE FUNCTION oncebox.check_saga_data(type text, plan jsonb, data jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  field record;
  found jsonb;
BEGIN
  IF jsonb_typeof(data) IS DISTINCT FROM 'object' THEN
    RAISE EXCEPTION 'saga "%" starts with data of type %, not with an object', type, coalesce(jsonb_typeof(data), 'NULL')
      USING ERRCODE = 'OB011';
  END IF;
  FOR field IN
    SELECT f.path, f.name, f.kind, f.is_required
    FROM jsonb_to_recordset(plan -> 'data') AS f (path jsonb, name text, kind text, is_required boolean)
  LOOP
    found := nullif(data #> ARRAY(SELECT jsonb_array_elements_text(field.path)), 'null');
    IF found IS NULL AND field.is_required THEN
      RAISE EXCEPTION 'saga "%" starts without field % in its data', type, field.name
        USING ERRCODE = 'OB011', HINT = format('Its file asks for it, of type %s.', field.kind);
    ELSIF found IS NOT NULL AND jsonb_typeof(found) <> (CASE field.kind WHEN 'integer' THEN 'number' ELSE field.kind END)
          OR field.kind = 'integer' AND (found #>> '{}')::numeric % 1 <> 0 THEN
      RAISE EXCEPTION 'saga "%" starts with a field % that is not of type %', type, field.name, field.kind
        USING ERRCODE = 'OB011';
    END IF;
  END LOOP;
END $$;

CREATE FUNCTION oncebox.check_skipped_reply(saga_id bigint, step text, reply jsonb) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  needed record;
BEGIN
  SELECT s.key, later.name AS step, string_agg(DISTINCT need.field, ', ') AS fields INTO needed
  FROM "oncebox".saga AS s
  JOIN "oncebox".saga_definition AS d ON d.fingerprint = s.fingerprint
  CROSS JOIN LATERAL jsonb_to_recordset(d.graph) AS later (name text, needs jsonb)
  CROSS JOIN LATERAL jsonb_to_recordset(later.needs) AS need (step text, field text, path jsonb)
  WHERE s.id = check_skipped_reply.saga_id AND s.direction = 'forward' AND need.step = check_skipped_reply.step
    AND check_skipped_reply.reply #> ARRAY(SELECT jsonb_array_elements_text(need.path)) IS NULL
  GROUP BY s.key, later.name
  ORDER BY later.name
  LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'step "%" of saga "%" cannot be skipped without its reply: step "%" needs % of it',
      check_skipped_reply.step, needed.key, needed.step, needed.fields
      USING ERRCODE = 'OB011', HINT = 'Give the reply that the participant would have sent: oncebox saga skip --reply and the reply as JSON.';
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.check_skipped_reply(saga_id bigint, step text, reply jsonb) IS 'Refuses to skip a step whose reply a later one needs, where that is not given.';

CREATE FUNCTION oncebox.check_stored_at(stored_at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    AS $$
BEGIN
  IF stored_at < '0001-01-01 00:00+00' OR stored_at >= '10000-01-01 00:00+00' THEN
    RAISE EXCEPTION 'stored_at is %, which is no moment of the years 1 to 9999', stored_at
      USING ERRCODE = 'OB011', HINT = 'It says when the stream has stored the message. Leave it out, with stream and stream_sequence, for one that is in no stream.';
  END IF;
  RETURN true;
END $$;

CREATE FUNCTION oncebox.check_subject(subject text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
BEGIN
  IF octet_length(subject) > 255
     OR subject COLLATE "C" !~ '^[!#%-)+-\-/-=?-~][!-)+-\-/-=?-~]*(\.[!-)+-\-/-=?-~]+)*$'
     OR subject LIKE '\_INBOX.%' THEN
    RAISE EXCEPTION 'subject "%" is not 1 to 255 bytes of visible ASCII in non-empty tokens without "*" and ">"', left(subject, 300)
      USING ERRCODE = 'OB003', HINT = 'Subjects that begin with "$" or "_INBOX." belong to NATS itself.';
  END IF;
  RETURN true;
END $_$;

CREATE FUNCTION oncebox.check_turn(this_turn bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  -- A sequence without a value is another fault, which the caller names.
  IF this_turn IS NOT NULL
     AND NOT EXISTS (SELECT FROM "oncebox".segment AS s WHERE s.number = this_turn % 8 AND s.turn = this_turn)
     AND EXISTS (SELECT FROM "oncebox".segment) THEN
    RAISE EXCEPTION 'the message log has turned since this transaction took its snapshot' USING ERRCODE = '40001',
      HINT = 'Nothing was enqueued. Run the transaction again.';
  END IF;
END $$;

CREATE FUNCTION oncebox.claim(scope text, key text, payload bytea, tenant text DEFAULT ''::text, message_id bigint DEFAULT NULL::bigint, OUT answer text, OUT outcome json, OUT reason text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  claimed record;
BEGIN
  IF current_setting('transaction_deferrable') = current_setting('default_transaction_deferrable') THEN
    PERFORM "oncebox".refuse_unmarked();
  END IF;
  IF claim.key IS NULL OR claim.payload IS NULL THEN
    PERFORM "oncebox".refuse_null(claim.key IS NULL, false);
  END IF;
  IF "oncebox".check_inbox_names(claim.scope, claim.tenant)
     AND "oncebox".check_key(claim.key) THEN
    claimed := "oncebox".claim_key(claim.scope, claim.tenant, claim.key, "oncebox".inbox_fingerprint(claim.payload),
                                  claim.message_id, 'completed', NULL);
  END IF;
  answer := claimed.answer;
  IF answer = 'dead' THEN
    reason := convert_from(claimed.outcome, 'UTF8');
  ELSE
    outcome := convert_from(claimed.outcome, 'UTF8')::json;
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.claim(scope text, key text, payload bytea, tenant text, message_id bigint, OUT answer text, OUT outcome json, OUT reason text) IS 'Claims a key in this transaction, begun with BEGIN DEFERRABLE: new (handle the message), replayed or rejected (a copy, with its outcome), dead (given up, with the reason), in_flight (another transaction works on it: later), mismatch (the key of another payload: bury it).';

CREATE FUNCTION oncebox.claim_batch(scope text, tenants text[], keys text[], fingerprints bytea[], message_ids bigint[] DEFAULT NULL::bigint[], time_limit interval DEFAULT NULL::interval, OUT place integer, OUT answer text, OUT outcome json) RETURNS SETOF record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
  PERFORM "oncebox".check_inbox_names(claim_batch.scope, w.tenant), "oncebox".check_key(w.key),
          CASE WHEN num_nulls(w.key, w.fingerprint) > 0 THEN "oncebox".refuse_null(w.key IS NULL, false) END
  FROM unnest(claim_batch.tenants, claim_batch.keys, claim_batch.fingerprints) AS w (tenant, key, fingerprint);
  INSERT INTO "oncebox".inbox_batch DEFAULT VALUES;
  IF claim_batch.time_limit IS NOT NULL AND claim_batch.time_limit NOT BETWEEN interval '1 ms' AND interval '24 days' THEN
    RAISE EXCEPTION 'time_limit % is not 1 ms to 24 days', claim_batch.time_limit
      USING ERRCODE = 'OB011', HINT = 'It bounds the transaction. Leave it out for the limits that the session has.';
  END IF;
  IF claim_batch.time_limit IS NOT NULL THEN
    PERFORM set_config(
      CASE WHEN current_setting('server_version_num')::integer >= 170000 THEN 'transaction_timeout' ELSE 'idle_in_transaction_session_timeout' END,
      ceil(1000 * extract(epoch FROM claim_batch.time_limit))::bigint || 'ms', true);
  END IF;
  IF EXISTS (SELECT FROM "oncebox".inbox_scope AS s WHERE s.scope = claim_batch.scope AND s.mode = 'transaction') THEN
    SELECT array_agg(w.place::integer) INTO won
    FROM (
      SELECT f.tenant, f.key, min(f.place) AS place
      FROM unnest(claim_batch.tenants, claim_batch.keys) WITH ORDINALITY AS f (tenant, key, place)
      GROUP BY f.tenant, f.key
    ) AS w
    JOIN "oncebox".claim_keys(
      claim_batch.scope,
      ARRAY(SELECT "oncebox".inbox_lock(claim_batch.scope, l.tenant, l.key) FROM unnest(claim_batch.tenants, claim_batch.keys) AS l (tenant, key)),
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
           r.fingerprint = w.fingerprint AND NOT "oncebox".is_own(r.xmin)
             AND NOT coalesce(r.created_at < statement_timestamp() - make_interval(secs => t.retention_seconds), false) AS is_clear
    FROM "oncebox".inbox AS r
    JOIN "oncebox".inbox_scope AS t ON t.scope = r.scope
    WHERE r.scope = claim_batch.scope AND r.tenant = w.tenant AND r.key = w.key
    OFFSET 0
  ) AS s ON true
  ORDER BY w.place;
END $$;

COMMENT ON FUNCTION oncebox.claim_batch(scope text, tenants text[], keys text[], fingerprints bytea[], message_ids bigint[], time_limit interval, OUT place integer, OUT answer text, OUT outcome json) IS 'Claims the keys of a batch of messages in this transaction: one row for each place, from 1: new (handle it), replayed or rejected (a copy, with its outcome), alone (claim it by itself after this transaction: a copy within the batch, in flight, dead, of another payload, of a scope that is new). Nothing is committed before settle_batch(). A fingerprint is inbox_fingerprint(payload). time_limit: the transaction is ended after it (before PostgreSQL 17: when the session was idle for as long).';

CREATE FUNCTION oncebox.claim_edit_once() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  root text COLLATE "C" := "oncebox".edit_root(NEW.key);
BEGIN
  -- A client names its requests as it likes; a claim under a lease has passed this when it ends.
  IF root = NEW.key OR EXISTS (
       SELECT
       FROM "oncebox".inbox_scope AS s
       WHERE s.scope = NEW.scope AND (s.kind = 'http' OR s.mode = 'lease' AND TG_TABLE_NAME = 'inbox')
     ) THEN
    RETURN NEW;
  END IF;
  IF NOT pg_try_advisory_xact_lock("oncebox".inbox_lock(NEW.scope, NEW.tenant, root)) OR EXISTS (
       SELECT
       FROM "oncebox".inbox AS i
       WHERE i.scope = NEW.scope AND i.tenant = NEW.tenant AND i.key <> NEW.key AND i.fingerprint <> ''
         AND (i.key = root OR i.key > root || ':oncebox-edit-' AND i.key < root || ':oncebox-edit.')
         AND "oncebox".edit_root(i.key) = root
         AND "oncebox".is_own(i.xmin)
     ) THEN
    RETURN NULL;
  END IF;
  IF TG_TABLE_NAME = 'inbox_claim' THEN
    IF NOT "oncebox".take_claims_before(NEW.scope, NEW.tenant, NEW.key, NEW.owner) THEN
      RETURN NULL;
    END IF;
  END IF;
  INSERT INTO "oncebox".inbox (scope, tenant, key, fingerprint, message_id, status, outcome)
  SELECT NEW.scope, NEW.tenant, NEW.key, NEW.fingerprint, NEW.message_id, e.status, e.outcome
  FROM "oncebox".ended_before_edit(NEW.scope, NEW.tenant, NEW.key) AS e
  ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING;
  IF FOUND THEN
    RETURN NULL;
  END IF;
  INSERT INTO "oncebox".inbox AS i (scope, tenant, key, fingerprint, status, outcome)
  SELECT NEW.scope, NEW.tenant, b.key, '', 'dead', convert_to(format('%s came in its place', NEW.key), 'UTF8')
  FROM "oncebox".before_edit(NEW.key) AS b (key)
  ORDER BY b.key
  ON CONFLICT ON CONSTRAINT inbox_pkey DO UPDATE
  SET fingerprint = '', outcome = excluded.outcome
  WHERE i.status = 'dead' AND i.fingerprint <> '';
  DELETE FROM "oncebox".inbox_attempt AS a
  WHERE a.scope = NEW.scope AND a.tenant = NEW.tenant AND a.key IN (SELECT "oncebox".before_edit(NEW.key));
  RETURN NEW;
END $$;

CREATE FUNCTION oncebox.claim_key(scope text, tenant text, key text, fingerprint bytea, message_id bigint, status text, ending bytea, OUT answer text, OUT outcome bytea) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  lock bigint := "oncebox".inbox_lock(claim_key.scope, claim_key.tenant, claim_key.key);
BEGIN
  FOR attempt IN 1 .. 3 LOOP
    INSERT INTO "oncebox".inbox (scope, tenant, key, fingerprint, message_id, status, outcome)
    SELECT s.scope, claim_key.tenant, claim_key.key, claim_key.fingerprint, claim_key.message_id, claim_key.status, claim_key.ending
    FROM "oncebox".inbox_scope AS s
    WHERE s.scope = claim_key.scope
      AND s.mode = 'transaction'
      AND pg_try_advisory_xact_lock(lock)
    ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING;
    IF FOUND THEN
      answer := 'new';
      RETURN;
    END IF;
    SELECT l.answer, l.outcome INTO answer, outcome
    FROM "oncebox".look_up_key(claim_key.scope, claim_key.tenant, claim_key.key, claim_key.fingerprint, lock) AS l;
    IF answer IS NOT NULL THEN
      RETURN;
    END IF;
  END LOOP;
  -- Others register the scope, or replace the row, at this moment.
  answer := 'in_flight';
END $$;

CREATE FUNCTION oncebox.claim_keys(scope text, locks bigint[], tenants text[], keys text[], fingerprints bytea[], message_ids bigint[]) RETURNS TABLE(tenant text, key text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  RETURN QUERY
  INSERT INTO "oncebox".inbox AS i (scope, tenant, key, fingerprint, message_id, status)
  SELECT claim_keys.scope, w.tenant, w.key, w.fingerprint, w.message_id, 'completed'
  FROM unnest(claim_keys.locks, claim_keys.tenants, claim_keys.keys, claim_keys.fingerprints, claim_keys.message_ids)
    AS w (lock, tenant, key, fingerprint, message_id)
  WHERE pg_try_advisory_xact_lock(w.lock)
  ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING
  RETURNING i.tenant::text, i.key::text;
END $$;

COMMENT ON FUNCTION oncebox.claim_keys(scope text, locks bigint[], tenants text[], keys text[], fingerprints bytea[], message_ids bigint[]) IS 'A part of claim_batch(), for the crate oncebox-inbox: claims keys, whose locks are those of inbox_lock(), and returns the keys that are new. It checks nothing, and does not keep this transaction from its COMMIT.';

CREATE FUNCTION oncebox.claim_leased(scope text, key text, payload bytea, owner uuid, lease interval, tenant text DEFAULT ''::text, message_id bigint DEFAULT NULL::bigint, is_alone boolean DEFAULT false, OUT answer text, OUT outcome json, OUT reason text, OUT epoch bigint, OUT attempts integer) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '1s'
    AS $$
DECLARE
  fingerprint bytea;
  held record;
  ended record;
BEGIN
  PERFORM "oncebox".check_inbox_names(claim_leased.scope, claim_leased.tenant),
          "oncebox".check_lease(claim_leased.owner, claim_leased.lease);
  IF claim_leased.key IS NULL OR claim_leased.payload IS NULL THEN
    PERFORM "oncebox".refuse_null(claim_leased.key IS NULL, false);
  END IF;
  PERFORM "oncebox".check_key(claim_leased.key);
  fingerprint := "oncebox".inbox_fingerprint(claim_leased.payload);
  PERFORM FROM "oncebox".inbox_scope AS s WHERE s.scope = claim_leased.scope AND s.mode = 'lease';
  IF NOT FOUND THEN
    PERFORM "oncebox".register_scope(claim_leased.scope, mode => 'lease');
  END IF;
  ended := "oncebox".look_up_ended(claim_leased.scope, claim_leased.tenant, claim_leased.key, fingerprint);
  IF ended.answer IS NULL THEN
    SELECT CASE
             WHEN c.fingerprint <> claim_leased_fingerprint THEN 'mismatch'
             WHEN c.lease_until > clock_timestamp() THEN 'in_flight'
             WHEN c.state = 'running' AND c.attempts >= 2 AND claim_leased.is_alone IS NOT TRUE THEN 'alone'
           END
    INTO answer
    FROM "oncebox".inbox_claim AS c, (SELECT fingerprint) AS f (claim_leased_fingerprint)
    WHERE c.scope = claim_leased.scope AND c.tenant = claim_leased.tenant AND c.key = claim_leased.key;
    IF answer IS NOT NULL THEN
      RETURN;
    END IF;
    BEGIN
      INSERT INTO "oncebox".inbox_claim AS c (scope, tenant, key, fingerprint, message_id, owner, lease_until)
      VALUES (claim_leased.scope, claim_leased.tenant, claim_leased.key, fingerprint, claim_leased.message_id,
              claim_leased.owner, clock_timestamp() + claim_leased.lease)
      ON CONFLICT ON CONSTRAINT inbox_claim_pkey DO UPDATE
      SET owner = excluded.owner,
          epoch = c.epoch + 1,
          state = 'running',
          lease_until = clock_timestamp() + claim_leased.lease,
          attempts = c.attempts + 1,
          taken_over = c.state = 'running',
          reason = NULL
      WHERE c.lease_until <= clock_timestamp()
        AND c.fingerprint = excluded.fingerprint
      RETURNING c.epoch, c.attempts INTO held;
      ended := "oncebox".look_up_ended(claim_leased.scope, claim_leased.tenant, claim_leased.key, fingerprint);
      IF held.epoch IS NOT NULL AND ended.answer IS NOT NULL THEN
        DELETE FROM "oncebox".inbox_claim AS c
        WHERE c.scope = claim_leased.scope AND c.tenant = claim_leased.tenant AND c.key = claim_leased.key;
      ELSIF held.epoch IS NOT NULL THEN
        DELETE FROM "oncebox".inbox AS i
        WHERE ended.is_expired AND i.scope = claim_leased.scope AND i.tenant = claim_leased.tenant AND i.key = claim_leased.key;
        answer := 'new';
        epoch := held.epoch;
        attempts := held.attempts;
        RETURN;
      END IF;
    EXCEPTION WHEN lock_not_available THEN
      -- Another taker, or one who ends the key at this moment, or the sweep, has the row.
      answer := 'in_flight';
      RETURN;
    END;
  END IF;
  answer := coalesce(ended.answer, 'in_flight');
  IF answer = 'dead' THEN
    reason := convert_from(ended.outcome, 'UTF8');
  ELSIF answer IN ('replayed', 'rejected') THEN
    outcome := convert_from(ended.outcome, 'UTF8')::json;
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.claim_leased(scope text, key text, payload bytea, owner uuid, lease interval, tenant text, message_id bigint, is_alone boolean, OUT answer text, OUT outcome json, OUT reason text, OUT epoch bigint, OUT attempts integer) IS 'Claims a key for the time of a lease, in a transaction of its own: new (handle the message; the epoch is the proof in all later calls; attempts counts the claims of this key), replayed or rejected (a copy, with its outcome), dead (given up, with the reason), in_flight (another process works on it, or its pause is not over: later), mismatch (the key of another payload), alone (it ended two owners without a trace: ask again with is_alone when nothing else runs in this process). COMMIT before you go on: begin_effect() refuses a claim that is not committed.';

CREATE FUNCTION oncebox.claim_request(scope text, tenant text, client_key text, fingerprint bytea, OUT answer text, OUT key text, OUT status integer, OUT headers jsonb, OUT body bytea) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  claimed record;
BEGIN
  IF current_setting('transaction_deferrable') = current_setting('default_transaction_deferrable') THEN
    PERFORM "oncebox".refuse_unmarked();
  END IF;
  PERFORM "oncebox".check_inbox_names(claim_request.scope, claim_request.tenant);
  IF octet_length(claim_request.fingerprint) IS DISTINCT FROM 32 THEN
    RAISE EXCEPTION 'a fingerprint has 32 bytes, not %', octet_length(claim_request.fingerprint) USING ERRCODE = 'OB011';
  END IF;
  key := "oncebox".request_key(claim_request.tenant, claim_request.client_key);
  claimed := "oncebox".claim_key(claim_request.scope, claim_request.tenant, key, claim_request.fingerprint, NULL, 'completed', NULL);
  answer := claimed.answer;
  IF answer IN ('replayed', 'rejected', 'dead') THEN
    answer := 'replayed';
    SELECT r.status, r.headers, r.body INTO status, headers, body FROM "oncebox".decode_response(claimed.outcome) AS r;
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.claim_request(scope text, tenant text, client_key text, fingerprint bytea, OUT answer text, OUT key text, OUT status integer, OUT headers jsonb, OUT body bytea) IS 'Claims a request in this transaction, begun with BEGIN DEFERRABLE: new (handle it), replayed (with the response; without a status it may be done in part, without a body that was not kept), in_flight (another one works on it), mismatch (the key of another request). The client''s key becomes `key`, from which keys of messages are derived.';

CREATE FUNCTION oncebox.consumer_place(stream text, durable text, stream_created text) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT p.next_sequence
  FROM "oncebox".consumer_position AS p
  WHERE p.stream = $1 AND p.durable = $2 AND p.stream_created = "oncebox".stream_time($3)
$_$;

COMMENT ON FUNCTION oncebox.consumer_place(stream text, durable text, stream_created text) IS 'The sequence from which a strictly ordered consumer goes on that JetStream does not have: NULL for one that has never been continued.';

CREATE FUNCTION oncebox.content_digest(headers jsonb, payload bytea) RETURNS bytea
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN sha256(((convert_to((headers)::text, 'UTF8'::name) || '\x00'::bytea) || payload));

CREATE FUNCTION oncebox.continue_canary(canary bigint, by text, note text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  rest integer;
BEGIN
  UPDATE "oncebox".canary AS k
  SET
    state = 'running', step = 1, room = 1, reason = NULL, fault = NULL, fault_since = NULL, ended_at = NULL,
    database_user = session_user, operator = continue_canary.by, note = continue_canary.note,
    command = coalesce(nullif(current_setting('oncebox.command', true), ''), 'transaction ' || pg_current_xact_id())
  WHERE k.id = continue_canary.canary
    AND k.state IN ('failed', 'stopped')
    AND k.selected > k.good + k.failed + k.skipped
  RETURNING k.selected - k.good - k.failed - k.skipped INTO rest;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE "oncebox".canary_row AS w
  SET retried_at = clock_timestamp()
  WHERE w.canary = continue_canary.canary AND w.state = 'watched';
  INSERT INTO "oncebox".audit (operator, note, action, messages, reason)
  VALUES (continue_canary.by, continue_canary.note, 'continue-canary', rest, format('canary %s', continue_canary.canary));
  RETURN true;
END $$;

COMMENT ON FUNCTION oncebox.continue_canary(canary bigint, by text, note text) IS 'For operators: goes on with the rest of a canary that has stopped, one row first, under the name of this operator. False when it has not stopped, or nothing is left.';

CREATE FUNCTION oncebox.continue_consumer(stream text, durable text, stream_created text, next_sequence bigint, took_over boolean) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  counted integer := coalesce(continue_consumer.took_over, false)::integer;
BEGIN
  IF num_nulls(continue_consumer.stream, continue_consumer.durable, continue_consumer.stream_created) > 0
     OR coalesce(continue_consumer.next_sequence, 0) < 1 THEN
    RAISE EXCEPTION 'stream %, durable %, its creation % or the next sequence % is missing, or the sequence is below 1',
      continue_consumer.stream, continue_consumer.durable, continue_consumer.stream_created, continue_consumer.next_sequence
      USING ERRCODE = 'OB011', HINT = 'The next sequence is the one behind the acknowledgement floor of the JetStream consumer.';
  END IF;
  INSERT INTO "oncebox".consumer_position AS p (stream, durable, stream_created, next_sequence, takeovers)
  VALUES (continue_consumer.stream, continue_consumer.durable, "oncebox".stream_time(continue_consumer.stream_created),
          continue_consumer.next_sequence, counted)
  ON CONFLICT ON CONSTRAINT consumer_position_pkey DO UPDATE
  SET stream_created = excluded.stream_created,
      next_sequence = excluded.next_sequence,
      takeovers = counted + CASE
        WHEN p.stream_created = excluded.stream_created AND p.next_sequence = excluded.next_sequence THEN p.takeovers
        ELSE 0
      END,
      updated_at = clock_timestamp()
  RETURNING p.takeovers INTO counted;
  RETURN counted;
END $$;

COMMENT ON FUNCTION oncebox.continue_consumer(stream text, durable text, stream_created text, next_sequence bigint, took_over boolean) IS 'Records, before a strictly ordered consumer is deleted and created again, from which sequence it goes on; returns how many processes in a row took over there. The first message counts as delivered that often before, and every message that the old consumer delivered as delivered once: record their runs with begin_attempt().';

CREATE FUNCTION oncebox.count_lost(lane smallint, stream text, since timestamp with time zone, OUT messages bigint, OUT milestone timestamp with time zone) RETURNS record
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH place AS MATERIALIZED (
    SELECT p.*
    FROM "oncebox".resend_place($1, $2, $3) AS p
  ),
  sent AS (
    SELECT m.id
    FROM place AS p
    JOIN "oncebox".log AS m ON m.lane = $1 AND m.id > p.floor
    JOIN "oncebox".stream AS s ON s.name = $2
    WHERE (m.id > p.high OR NOT pg_visible_in_snapshot(m.xact, p.snap))
      AND (
        m.id <= p.until_floor
        OR m.id <= p.until_high AND pg_visible_in_snapshot(m.xact, p.until_snap)
        OR m.id <= p.until_after AND pg_visible_in_snapshot(m.xact, p.until_target)
      )
      AND (
        m.subject COLLATE "C" ~ s.subjects
        OR p.goes_back AND EXISTS (
          SELECT FROM "oncebox".loss AS l
          WHERE l.lane = $1 AND l.resending_at IS NOT NULL AND l.ended_at IS NULL AND m.subject COLLATE "C" ~ l.subjects
        )
      )
    UNION
    SELECT r.id
    FROM place AS p
    JOIN "oncebox".late_receipt AS r ON r.lane = $1 AND r.stream = $2 AND r.sequence > p.sequence
      AND r.at BETWEEN coalesce(p.reached_at, '-infinity') AND p.found_at
    WHERE r.key IS NOT NULL OR EXISTS (
      SELECT FROM "oncebox".log AS n
      WHERE n.lane = $1 AND n.id = r.id
        AND (n.id <= p.floor OR n.id <= p.high AND pg_visible_in_snapshot(n.xact, p.snap))
    )
  )
  SELECT
    (
      SELECT count(*)
      FROM sent AS m
      WHERE NOT EXISTS (SELECT FROM "oncebox".parked AS p WHERE p.lane = $1 AND p.id = m.id OFFSET 0)
        AND NOT EXISTS (SELECT FROM "oncebox".discarded AS d WHERE d.lane = $1 AND d.id = m.id OFFSET 0)
    ),
    (SELECT p.reached_at FROM place AS p)
$_$;

COMMENT ON FUNCTION oncebox.count_lost(lane smallint, stream text, since timestamp with time zone, OUT messages bigint, OUT milestone timestamp with time zone) IS 'For operators: how many messages of a lane resend_loss() would have sent again, and since which milestone.';

CREATE FUNCTION oncebox.count_segment(number smallint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  counted bigint := (SELECT c.reltuples::bigint FROM pg_class AS c
    WHERE c.oid = format('"oncebox".message_%s', number)::regclass);
BEGIN
  IF counted < 1000000 THEN
    EXECUTE format('SELECT count(*) FROM (SELECT FROM "oncebox".message_%s AS m WHERE m.lane >= 0 LIMIT 1000000) AS m', number)
      INTO counted;
  END IF;
  RETURN counted;
END $$;

CREATE FUNCTION oncebox.dead_letter_event() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  PERFORM "oncebox".send_event(
    'dead-letter',
    NEW.subject,
    jsonb_build_object('inbox', NEW.scope, 'tenant', NEW.tenant, 'key', NEW.key, 'subject', NEW.subject,
                       'stream', NEW.stream, 'stream_sequence', NEW.stream_sequence,
                       'deliveries', NEW.deliveries, 'reason', NEW.reason)
  );
  RETURN NULL;
END $$;

CREATE FUNCTION oncebox.decode_response(stored bytea, OUT status integer, OUT headers jsonb, OUT body bytea) RETURNS record
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  place integer := 7;
  size integer;
  name text;
BEGIN
  IF stored IS NULL OR octet_length(stored) < 6 OR substr(stored, 1, 1) <> '\x01' THEN
    RETURN;
  END IF;
  headers := '[]';
  FOR header IN 1 .. get_byte(stored, 4) * 256 + get_byte(stored, 5) LOOP
    size := get_byte(stored, place - 1) * 256 + get_byte(stored, place);
    name := convert_from(substr(stored, place + 2, size), 'UTF8');
    place := place + 2 + size;
    size := ('x' || encode(substr(stored, place, 4), 'hex'))::bit(32)::integer;
    headers := headers || jsonb_build_array(jsonb_build_array(name, convert_from(substr(stored, place + 4, size), 'LATIN1')));
    place := place + 4 + size;
  END LOOP;
  size := octet_length(stored) + 1 - place;
  IF size < 0 OR get_byte(stored, 3) > 1 OR get_byte(stored, 3) = 0 AND size > 0 THEN
    RETURN;
  END IF;
  status := get_byte(stored, 1) * 256 + get_byte(stored, 2);
  body := CASE get_byte(stored, 3) WHEN 1 THEN substr(stored, place) END;
EXCEPTION WHEN array_subscript_error OR character_not_in_repertoire OR untranslatable_character OR invalid_text_representation
    OR substring_error OR numeric_value_out_of_range THEN
  status := NULL;
END $$;

CREATE FUNCTION oncebox.delete_placeholders(ids bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  this_turn bigint := pg_sequence_last_value('"oncebox".turn');
BEGIN
  EXECUTE format('DELETE FROM "oncebox".message_%s AS m WHERE m.lane = -1 AND m.id = ANY ($1)', this_turn % 8) USING ids;
  EXECUTE format('DELETE FROM "oncebox".message_%s AS m WHERE m.lane = -1 AND m.id = ANY ($1)', (this_turn + 7) % 8) USING ids;
END $_$;

CREATE FUNCTION oncebox.disable_events(kinds text[], by text, note text) RETURNS SETOF text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH disabled AS (
    DELETE FROM "oncebox".event_kind
    WHERE kind = ANY ($1::text[])
    RETURNING kind
  ),
  recorded AS (
    INSERT INTO "oncebox".audit (operator, note, action, reason)
    SELECT $2, $3, 'disable-events', string_agg(d.kind, ' ' ORDER BY d.kind)
    FROM disabled AS d
    HAVING count(*) > 0
  )
  SELECT kind
  FROM disabled
  ORDER BY kind
$_$;

COMMENT ON FUNCTION oncebox.disable_events(kinds text[], by text, note text) IS 'For operators: has kinds of events sent no more. Returns those that were sent before.';

CREATE FUNCTION oncebox.discard_backlog(by text, note text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  INSERT INTO "oncebox".audit (operator, note, action, lane, message_id, key, subject, reason)
  SELECT discard_backlog.by, discard_backlog.note, b.action, b.lane, b.id, b.key, b.subject, 'the backlog of a copy that was adopted'
  FROM "oncebox".backlog() AS b;
  INSERT INTO "oncebox".discarded (lane, id)
  SELECT b.lane, b.id FROM "oncebox".backlog() AS b WHERE b.action = 'discard'
  ON CONFLICT DO NOTHING;
  INSERT INTO "oncebox".cursor (lane, number, floor, high, system_identifier)
  SELECT c.lane, c.number + 1, last.id, last.id, here.system_identifier
  FROM "oncebox".lane_cursor AS c
  CROSS JOIN pg_control_system() AS here
  CROSS JOIN LATERAL (
    SELECT greatest(c.floor, c.high, c.reset_until, max(m.id)) AS id FROM "oncebox".log AS m WHERE m.lane = c.lane
  ) AS last;
  DELETE FROM "oncebox".cursor AS c
  WHERE c.number < (SELECT newest.number FROM "oncebox".lane_cursor AS newest WHERE newest.lane = c.lane);
  -- A message that is written later is none of these, however low its id.
  INSERT INTO "oncebox".reset AS r (lane)
  SELECT l.lane FROM "oncebox".lane AS l
  ON CONFLICT ON CONSTRAINT reset_pkey DO UPDATE SET snap = excluded.snap;
  DELETE FROM "oncebox".milestone;
  UPDATE "oncebox".replay AS r
  SET cancelled = p.replay
  FROM "oncebox".parked AS p
  WHERE p.replay > 0 AND r.lane = p.lane AND r.id = p.id;
  DELETE FROM "oncebox".parked;
  PERFORM "oncebox".delete_placeholders((SELECT array_agg(d.id) FROM "oncebox".delayed AS d));
  DELETE FROM "oncebox".delayed;
END $$;

CREATE FUNCTION oncebox.discard_letters(ids bigint[], by text, note text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  lined bigint[];
  scopes text[];
  lines text[];
BEGIN
  PERFORM "oncebox".bound_kept();
  WITH letter AS MATERIALIZED (
    SELECT d.id, d.scope, d.ordering_key
    FROM "oncebox".dead_letter AS d
    WHERE d.id = ANY (discard_letters.ids) AND d.ordering_key IS NOT NULL
    ORDER BY d.id
    FOR UPDATE
  ),
  freed AS (
    UPDATE "oncebox".dead_letter AS d
    SET ordering_key = NULL
    FROM letter AS l
    WHERE d.id = l.id
    RETURNING l.id, l.scope, l.ordering_key
  )
  SELECT array_agg(f.id), array_agg(f.scope), array_agg(f.ordering_key) INTO lined, scopes, lines FROM freed AS f;
  RETURN QUERY
  WITH gone AS (
    DELETE FROM "oncebox".dead_letter AS d
    WHERE d.id = ANY (discard_letters.ids)
    RETURNING d.*
  ),
  noted AS (
    INSERT INTO "oncebox".audit (operator, note, action, message_id, scope, key, subject, reason)
    SELECT discard_letters.by, discard_letters.note, 'discard', g.id, g.scope, g.key, g.subject, g.reason
    FROM gone AS g
    RETURNING audit.id, message_id
  ),
  kept AS (
    INSERT INTO "oncebox".kept (audit, origin, id, bytes, columns, payload)
    SELECT n.id, 'dead_letter', g.id, octet_length(g.payload),
      (to_jsonb(g) - 'payload') || jsonb_build_object('ordering_key', l.line), g.payload
    FROM noted AS n
    JOIN gone AS g ON g.id = n.message_id
    LEFT JOIN unnest(lined, lines) AS l (id, line) ON l.id = g.id
  )
  SELECT n.message_id
  FROM noted AS n;
  PERFORM "oncebox".advance_line(l.scope, l.line) FROM unnest(scopes, lines) AS l (scope, line);
END $$;

COMMENT ON FUNCTION oncebox.discard_letters(ids bigint[], by text, note text) IS 'For operators: takes dead letters out, and keeps them for a day, see undo_discard(); their keys stay settled as dead, and messages that waited for them run. Returns their ids.';

CREATE FUNCTION oncebox.drain_segments() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  part "oncebox".segment;
  is_so boolean;
BEGIN
  PERFORM "oncebox".note_turn();
  UPDATE "oncebox".segment AS s SET drained_at = clock_timestamp() WHERE s.drained_at > clock_timestamp();
  FOR part IN
    SELECT s.* FROM "oncebox".segment AS s
    WHERE (s.is_live OR s.is_empty) AND s.number <> pg_sequence_last_value('"oncebox".turn') % 8
    ORDER BY s.number
  LOOP
    IF part.is_empty THEN
      EXECUTE format('SELECT EXISTS (SELECT FROM "oncebox".message_%s)', part.number) INTO is_so;
      IF is_so THEN
        UPDATE "oncebox".segment AS s SET is_empty = false, is_live = true, drained_at = clock_timestamp()
        WHERE s.number = part.number;
      END IF;
      CONTINUE;
    END IF;
    is_so := "oncebox".segment_is_due(part.number);
    IF NOT is_so THEN
      UPDATE "oncebox".segment AS s SET is_live = false, drained_at = clock_timestamp() WHERE s.number = part.number;
    END IF;
  END LOOP;
  RETURN (SELECT count(*) FROM "oncebox".segment AS s WHERE s.is_live);
END $$;

COMMENT ON FUNCTION oncebox.drain_segments() IS 'For relays: notes which segments of the log hold nothing that is due.';

CREATE FUNCTION oncebox.edit_dead(lane smallint, id bigint, headers jsonb, payload bytea, seen bytea, by text, note text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  old "oncebox".parked;
  new_key text;
  noted bigint;
BEGIN
  PERFORM FROM "oncebox".maintenance FOR UPDATE;
  PERFORM FROM "oncebox".lane AS l WHERE l.lane = edit_dead.lane FOR UPDATE;
  PERFORM "oncebox".bound_kept();
  SELECT p.* INTO old
  FROM "oncebox".parked AS p
  WHERE p.lane = edit_dead.lane AND p.id = edit_dead.id AND p.dead_at IS NOT NULL;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'message % is not dead any more', edit_dead.id USING ERRCODE = 'OB011';
  ELSIF old.replay > 0 THEN
    RAISE EXCEPTION 'message % was stored once, and only its replay is dead', edit_dead.id
      USING ERRCODE = 'OB011', HINT = 'Give the replay up, and enqueue another message.';
  END IF;
  PERFORM "oncebox".check_edit(old.headers, old.payload, edit_dead.headers, edit_dead.payload, seen, note),
          "oncebox".check_headers(edit_dead.headers);
  new_key := "oncebox".edit_key(old.key);
  PERFORM "oncebox".rewrite_message(old.lane, old.id, new_key, edit_dead.headers, edit_dead.payload);
  UPDATE "oncebox".parked AS p
  SET key = new_key, headers = edit_dead.headers, payload = edit_dead.payload, waits_for = NULL
  WHERE p.lane = old.lane AND p.id = old.id;
  PERFORM "oncebox".make_due(old.lane, ARRAY[old.id]);
  INSERT INTO "oncebox".audit (operator, note, action, lane, message_id, key, subject, reason)
  VALUES (by, note, 'edit', old.lane, old.id, old.key, old.subject,
          "oncebox".edit_reason(new_key, old.headers, old.payload, edit_dead.headers, edit_dead.payload))
  RETURNING audit.id INTO noted;
  INSERT INTO "oncebox".kept (audit, origin, lane, id, bytes, columns, payload)
  VALUES (noted, 'edited', old.lane, old.id, octet_length(old.payload),
          (to_jsonb(old) - 'payload') || jsonb_build_object('edited', new_key), old.payload);
  RETURN new_key;
END $$;

COMMENT ON FUNCTION oncebox.edit_dead(lane smallint, id bigint, headers jsonb, payload bytea, seen bytea, by text, note text) IS 'For operators: gives a dead message other headers and another payload, under the next key KEY:oncebox-edit-N, and makes it due; keeps it as it was for a day, see undo_discard(). seen: content_digest() of the row that was shown. Returns the new key.';

CREATE FUNCTION oncebox.edit_key(key text) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  root text COLLATE "C" := "oncebox".edit_root(edit_key.key);
  number bigint;
  edited text;
BEGIN
  SELECT count(*) INTO number
  FROM "oncebox".audit AS a
  WHERE a.action = 'edit' AND (a.key = root OR a.key > root || ':oncebox-edit-' AND a.key < root || ':oncebox-edit.')
    AND "oncebox".edit_root(a.key) = root;
  LOOP
    number := number + 1;
    edited := root || ':oncebox-edit-' || number;
    PERFORM "oncebox".check_key(edited);
    EXIT WHEN NOT EXISTS (SELECT FROM "oncebox".log AS l WHERE l.key = edited);
  END LOOP;
  RETURN edited;
END $$;

CREATE FUNCTION oncebox.edit_letter(id bigint, headers jsonb, payload bytea, seen bytea, by text, note text, OUT outbox text, OUT key text, OUT subject text, OUT edited_headers text, OUT edited_payload bytea, OUT number bigint, OUT is_in_line boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  old "oncebox".dead_letter;
  final jsonb := edit_letter.headers;
  header record;
  has_key boolean := false;
BEGIN
  SELECT d.* INTO old FROM "oncebox".dead_letter AS d WHERE d.id = edit_letter.id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'dead letter % is gone', edit_letter.id USING ERRCODE = 'OB011';
  ELSIF old.key IS NULL THEN
    RAISE EXCEPTION 'dead letter % has no valid key, so an edit of it can have none', edit_letter.id
      USING ERRCODE = 'OB011', HINT = 'Enqueue the right message under a key of its own, and discard the letter.';
  ELSIF EXISTS (SELECT FROM "oncebox".inbox AS i WHERE i.scope = old.scope AND i.tenant = old.tenant AND i.key = old.key AND i.status <> 'dead') THEN
    RAISE EXCEPTION 'the inbox has handled another message under the key of dead letter %, and would answer its edit as a copy of that', edit_letter.id
      USING ERRCODE = 'OB011', HINT = 'Enqueue it under a key of its own, and discard the letter.';
  END IF;
  PERFORM "oncebox".check_edit(old.headers, old.payload, edit_letter.headers, edit_letter.payload, seen, note),
          "oncebox".check_headers(coalesce(jsonb_object_agg(h.name, h.value), '{}'))
  FROM jsonb_each(edit_letter.headers) AS h (name, value)
  WHERE (old.headers -> h.name) IS DISTINCT FROM h.value;
  key := "oncebox".edit_key(old.key);
  FOR header IN SELECT h.name, h.value #>> '{}' AS value FROM jsonb_each(edit_letter.headers) AS h (name, value) LOOP
    CASE
      WHEN lower(header.name) IN ('idempotency-key', 'x-idempotency-key') AND header.value = old.key THEN
        final := final || jsonb_build_object(header.name, key);
        has_key := true;
      WHEN lower(header.name) = 'nats-msg-id' THEN
        final := (final - header.name) || jsonb_build_object('Nats-Msg-Id', key);
        has_key := has_key OR header.value = old.key OR header.value LIKE '%/' || old.key;
      WHEN lower(header.name) = 'ce-id' THEN
        final := final || jsonb_build_object(header.name, "oncebox".edit_root(header.value) || substring(key FROM ':oncebox-edit-[0-9]+$'));
      -- A new payload is in the message; the old one stays in its bucket.
      WHEN edit_letter.payload <> old.payload AND lower(header.name) ~ '^(oncebox-object.*|ce-dataref)$' THEN
        final := final - header.name;
      ELSE NULL;
    END CASE;
  END LOOP;
  IF NOT has_key THEN
    RAISE EXCEPTION 'the key of dead letter % is in none of its headers, so an edit cannot give it another', edit_letter.id
      USING ERRCODE = 'OB011', HINT = 'Publish the right message where it came from, and discard the letter.';
  END IF;
  SELECT o.identity INTO outbox FROM "oncebox".outbox AS o;
  subject := old.subject;
  edited_headers := final::text;
  edited_payload := edit_letter.payload;
  number := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
  is_in_line := old.ordering_key IS NOT NULL;
  UPDATE "oncebox".dead_letter AS d SET ordering_key = NULL WHERE d.id = old.id AND is_in_line;
  DELETE FROM "oncebox".dead_letter AS d WHERE d.id = old.id;
  -- As when the edit is claimed: no operator shall be told to send the old message again.
  UPDATE "oncebox".inbox AS i
  SET fingerprint = '', outcome = convert_to(format('%s came in its place', edit_letter.key), 'UTF8')
  WHERE i.scope = old.scope AND i.tenant = old.tenant AND i.key = old.key AND i.status = 'dead';
  INSERT INTO "oncebox".inbox_behind
    (id, scope, tenant, key, ordering_key, subject, headers, payload, stream, stream_sequence, stored_at)
  SELECT old.id, old.scope, old.tenant, edit_letter.key, old.ordering_key, old.subject, final, edit_letter.payload, old.stream,
         old.stream_sequence, old.stored_at
  WHERE is_in_line
  ON CONFLICT ON CONSTRAINT inbox_behind_once DO NOTHING;
  INSERT INTO "oncebox".audit (operator, note, action, message_id, scope, key, subject, reason)
  VALUES (by, note, 'edit', old.id, old.scope, old.key, old.subject,
          "oncebox".edit_reason(key, old.headers, old.payload, edit_letter.headers, edit_letter.payload));
  PERFORM "oncebox".advance_line(old.scope, old.ordering_key) WHERE is_in_line;
END $_$;

COMMENT ON FUNCTION oncebox.edit_letter(id bigint, headers jsonb, payload bytea, seen bytea, by text, note text, OUT outbox text, OUT key text, OUT subject text, OUT edited_headers text, OUT edited_payload bytea, OUT number bigint, OUT is_in_line boolean) IS 'For operators: takes a dead letter out, and returns it with other headers and another payload under the next key KEY:oncebox-edit-N. The caller publishes it, and then commits; one that is in a line is run by its consumer. seen: content_digest() of the row that was shown.';

CREATE FUNCTION oncebox.edit_reason(new_key text, old_headers jsonb, old_payload bytea, headers jsonb, payload bytea) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT format('%s; payload SHA-256 %s to %s; headers changed: %s', $1,
    "oncebox".payload_digest($2, $3), "oncebox".payload_digest($4, $5),
    coalesce((
      SELECT string_agg(n.name, ', ' ORDER BY n.name)
      FROM (SELECT jsonb_object_keys($2 || $4)) AS n (name)
      WHERE ($2 -> n.name) IS DISTINCT FROM ($4 -> n.name)
    ), 'none'))
$_$;

CREATE FUNCTION oncebox.edit_root(key text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN regexp_replace(key, ':oncebox-edit-[1-9][0-9]*$'::text, ''::text);

CREATE FUNCTION oncebox.empty_segment(retention_seconds double precision, OUT number smallint, OUT messages bigint) RETURNS SETOF record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '300ms'
    AS $$
DECLARE
  part "oncebox".segment;
BEGIN
  SELECT s.* INTO part FROM "oncebox".old_segments(retention_seconds) AS s LIMIT 1;
  IF NOT FOUND OR part.looked_lane IS DISTINCT FROM 32767 AND EXISTS (SELECT FROM "oncebox".reset) THEN
    RETURN;
  END IF;
  number := part.number;
  messages := "oncebox".count_segment(number);
  BEGIN
    EXECUTE format('TRUNCATE "oncebox".message_%s', number);
  EXCEPTION WHEN lock_not_available THEN
    RETURN;
  END;
  UPDATE "oncebox".segment AS s SET is_empty = true, drained_at = NULL WHERE s.number = empty_segment.number;
  RETURN NEXT;
END $$;

COMMENT ON FUNCTION oncebox.empty_segment(retention_seconds double precision, OUT number smallint, OUT messages bigint) IS 'For relays, and in prune_segment() for operators: empties the oldest segment of the log that is past the retention time.';

CREATE FUNCTION oncebox.enable_events(kinds text[], by text, note text) RETURNS SETOF text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH enabled AS (
    INSERT INTO "oncebox".event_kind (kind)
    SELECT unnest($1::text[])
    ON CONFLICT ON CONSTRAINT event_kind_pkey DO NOTHING
    RETURNING kind
  ),
  recorded AS (
    INSERT INTO "oncebox".audit (operator, note, action, reason)
    SELECT $2, $3, 'enable-events', string_agg(e.kind, ' ' ORDER BY e.kind)
    FROM enabled AS e
    HAVING count(*) > 0
  )
  SELECT kind
  FROM enabled
  ORDER BY kind
$_$;

COMMENT ON FUNCTION oncebox.enable_events(kinds text[], by text, note text) IS 'For operators: has kinds of events sent. Returns those that were not sent before.';

CREATE FUNCTION oncebox.encode_response(status integer, headers jsonb, body bytea) RETURNS bytea
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN ((((('\x01'::bytea || int2send((status)::smallint)) || CASE WHEN (body IS NULL) THEN '\x00'::bytea ELSE '\x01'::bytea END) || int2send((jsonb_array_length(headers))::smallint)) || COALESCE((SELECT string_agg((((int2send((octet_length((h.pair ->> 0)))::smallint) || convert_to((h.pair ->> 0), 'UTF8'::name)) || int4send(length((h.pair ->> 1)))) || convert_to((h.pair ->> 1), 'LATIN1'::name)), '\x'::bytea ORDER BY h.n) AS string_agg FROM jsonb_array_elements(encode_response.headers) WITH ORDINALITY h(pair, n)), '\x'::bytea)) || COALESCE(body, '\x'::bytea));

CREATE FUNCTION oncebox.end_action(barrier text, tenant text, key text, had_effect boolean, attempt integer DEFAULT 1) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  ended text;
BEGIN
  PERFORM "oncebox".check_barrier(end_action.barrier, end_action.tenant, end_action.key, end_action.had_effect, end_action.attempt);
  -- To say again that it had its effect changes nothing.
  UPDATE "oncebox".barrier AS b
  SET state = CASE WHEN end_action.had_effect THEN 'acted' ELSE 'rejected' END, changed_at = clock_timestamp()
  WHERE b.barrier = end_action.barrier AND b.tenant = end_action.tenant AND b.key = end_action.key
    AND b.attempt = end_action.attempt
    AND (b.state = 'acting' OR b.state = 'acted' AND (end_action.had_effect OR b.xact = pg_current_xact_id()))
  RETURNING b.state INTO ended;
  RETURN "oncebox".check_end(ended, end_action.barrier, end_action.key, end_action.attempt);
END $$;

COMMENT ON FUNCTION oncebox.end_action(barrier text, tenant text, key text, had_effect boolean, attempt integer) IS 'An attempt at an action that was let through has ended, with or without an effect: under a lease in a later transaction, else in the same one. Error OB012 when no such run is under way.';

CREATE FUNCTION oncebox.end_compensation(barrier text, tenant text, key text, has_undone boolean DEFAULT true, attempt integer DEFAULT 1) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  ended text;
BEGIN
  PERFORM "oncebox".check_barrier(end_compensation.barrier, end_compensation.tenant, end_compensation.key, end_compensation.has_undone, end_compensation.attempt);
  UPDATE "oncebox".barrier AS b
  SET state = CASE WHEN end_compensation.has_undone THEN 'undone' ELSE 'acted' END, changed_at = clock_timestamp()
  WHERE b.barrier = end_compensation.barrier AND b.tenant = end_compensation.tenant AND b.key = end_compensation.key
    AND b.attempt = end_compensation.attempt
    AND (b.state = 'undoing' OR b.state = 'undone' AND NOT end_compensation.has_undone AND b.xact = pg_current_xact_id())
  RETURNING b.state INTO ended;
  RETURN "oncebox".check_end(ended, end_compensation.barrier, end_compensation.key, end_compensation.attempt);
END $$;

COMMENT ON FUNCTION oncebox.end_compensation(barrier text, tenant text, key text, has_undone boolean, attempt integer) IS 'An attempt at a compensation that was let through has ended: a leased one has undone its action, or one of either kind has undone nothing, and the next attempt may; the latter in the same transaction unless it is leased. Error OB012 when no such run is under way.';

CREATE FUNCTION oncebox.end_effect(scope text, key text, owner uuid, epoch bigint, lease interval, step text, status text, result json DEFAULT NULL::json, reason text DEFAULT NULL::text, tenant text DEFAULT ''::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  stored bytea := CASE end_effect.status
    WHEN 'done' THEN convert_to(coalesce(end_effect.result, 'null')::text, 'UTF8')
    WHEN 'rejected' THEN convert_to("oncebox".bounded_reason(end_effect.reason), 'UTF8')
  END;
BEGIN
  IF end_effect.status IS NULL OR end_effect.status NOT IN ('done', 'rejected', 'absent') THEN
    RAISE EXCEPTION 'status % is not "done", "rejected" or "absent"', coalesce('"' || left(end_effect.status, 300) || '"', 'null')
      USING ERRCODE = 'OB011', HINT = 'absent: it is known that the effect did not happen.';
  END IF;
  IF octet_length(stored) > 1048576 THEN
    RAISE EXCEPTION 'the result is % bytes long; the limit is 1048576 bytes (1 MiB)', octet_length(stored)
      USING ERRCODE = 'OB011', HINT = 'End the effect with less of it, or with a reference.';
  END IF;
  IF NOT "oncebox".renew_lease(end_effect.scope, end_effect.key, end_effect.owner, end_effect.epoch, end_effect.lease, end_effect.tenant) THEN
    RETURN false;
  END IF;
  PERFORM "oncebox".refuse_uncommitted(e.xmin, 'the beginning of the effect')
  FROM "oncebox".inbox_effect AS e
  WHERE e.scope = end_effect.scope AND e.tenant = end_effect.tenant AND e.key = end_effect.key AND e.step = end_effect.step;
  IF stored IS NULL THEN
    DELETE FROM "oncebox".inbox_effect AS e
    WHERE e.scope = end_effect.scope AND e.tenant = end_effect.tenant AND e.key = end_effect.key AND e.step = end_effect.step AND e.state = 'started';
  ELSE
    UPDATE "oncebox".inbox_effect AS e
    SET state = end_effect.status, result = stored, epoch = end_effect.epoch
    WHERE e.scope = end_effect.scope AND e.tenant = end_effect.tenant AND e.key = end_effect.key AND e.step = end_effect.step AND e.state = 'started';
  END IF;
  -- Not found: it has ended so before, and its answer was lost.
  IF NOT FOUND AND (stored IS NOT NULL OR EXISTS (
    SELECT
    FROM "oncebox".inbox_effect AS e
    WHERE e.scope = end_effect.scope AND e.tenant = end_effect.tenant AND e.key = end_effect.key AND e.step = end_effect.step
  )) AND NOT EXISTS (
    SELECT
    FROM "oncebox".inbox_effect AS e
    WHERE e.scope = end_effect.scope AND e.tenant = end_effect.tenant AND e.key = end_effect.key AND e.step = end_effect.step
      AND e.state = end_effect.status AND e.result = stored
  ) THEN
    RAISE EXCEPTION 'effect "%" of key "%" has not begun, or has ended otherwise', left(end_effect.step, 300), left(end_effect.key, 300)
      USING ERRCODE = 'OB010', HINT = 'end_effect() follows once on begin_effect() that answered "begun" or "open".';
  END IF;
  RETURN true;
END $$;

COMMENT ON FUNCTION oncebox.end_effect(scope text, key text, owner uuid, epoch bigint, lease interval, step text, status text, result json, reason text, tenant text) IS 'Remembers how an effect ended: done (with its result), rejected (it never will happen, with the reason), absent (it is known not to have happened, and is forgotten). Leave it open, and call release_leased(), when you do not know. False: the lease is lost, and nothing is written. May be repeated when its answer was lost.';

CREATE FUNCTION oncebox.end_in_line(scope text, id bigint, since bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  line text;
BEGIN
  DELETE FROM "oncebox".inbox_behind AS b
  WHERE b.id = end_in_line.id AND b.scope = end_in_line.scope
    AND (extract(epoch FROM b.created_at) * 1000000)::bigint = end_in_line.since
  RETURNING b.ordering_key INTO line;
  IF FOUND THEN
    PERFORM "oncebox".advance_line(end_in_line.scope, line);
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.end_in_line(scope text, id bigint, since bigint) IS 'Takes a message of next_in_line() out of its line once it has ended, also as a dead letter; the next one is due then.';

CREATE FUNCTION oncebox.end_leased(scope text, tenant text, key text, owner uuid, epoch bigint, status text, outcome bytea) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  WITH ended AS (
    DELETE FROM "oncebox".inbox_claim AS c
    WHERE c.scope = end_leased.scope
      AND c.tenant = end_leased.tenant
      AND c.key = end_leased.key
      AND c.owner = end_leased.owner
      AND c.epoch = end_leased.epoch
      AND c.state = 'running'
    RETURNING c.scope, c.tenant, c.key, c.fingerprint, c.message_id
  )
  INSERT INTO "oncebox".inbox (scope, tenant, key, fingerprint, message_id, status, outcome)
  SELECT e.scope, e.tenant, e.key, e.fingerprint, e.message_id, end_leased.status, end_leased.outcome
  FROM ended AS e;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF end_leased.status = 'dead' THEN
    UPDATE "oncebox".inbox_effect AS e
    SET epoch = 0
    WHERE e.scope = end_leased.scope AND e.tenant = end_leased.tenant AND e.key = end_leased.key;
  ELSE
    DELETE FROM "oncebox".inbox_effect AS e
    WHERE e.scope = end_leased.scope AND e.tenant = end_leased.tenant AND e.key = end_leased.key;
  END IF;
  RETURN true;
END $$;

COMMENT ON FUNCTION oncebox.end_leased(scope text, tenant text, key text, owner uuid, epoch bigint, status text, outcome bytea) IS 'A part of finish_leased() and bury_leased(), for the crate oncebox-inbox. False: the lease is lost, so roll back. It checks nothing else.';

CREATE FUNCTION oncebox.end_turn(span_seconds double precision, wait_ms integer, pause_seconds double precision) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  this_turn bigint;
  closing regclass;
  closed "oncebox".segment;
  next "oncebox".segment;
  holder text;
BEGIN
  IF "oncebox".note_turn() THEN
    RETURN NULL;
  END IF;
  this_turn := pg_sequence_last_value('"oncebox".turn');
  closing := format('"oncebox".message_%s', this_turn % 8);
  -- Written while the clock was ahead.
  UPDATE "oncebox".segment AS s
  SET began_at = least(s.began_at, clock_timestamp()), tried_at = least(s.tried_at, clock_timestamp())
  WHERE s.began_at > clock_timestamp() OR s.tried_at > clock_timestamp();
  SELECT s.* INTO closed FROM "oncebox".segment AS s WHERE s.number = this_turn % 8;
  IF closed.began_at > clock_timestamp() - make_interval(secs => least(greatest(span_seconds, 0), "oncebox".retention_max())) THEN
    RETURN NULL;
  END IF;
  SELECT s.* INTO next FROM "oncebox".segment AS s WHERE s.number = (this_turn + 1) % 8;
  IF NOT next.is_empty THEN
    RETURN format('the next segment, message_%s, is not empty: %s', next.number, CASE
      WHEN next.is_live THEN 'messages in it are due'
      ELSE 'it is kept until all of it is past the retention time' END);
  END IF;
  SELECT CASE
      WHEN l.mode = 'ShareUpdateExclusiveLock' THEN format('process %s vacuums or analyses %s', l.pid, closing)
      WHEN l.mode <> 'RowExclusiveLock' THEN format('process %s has locked %s (%s)', l.pid, closing, l.mode)
      WHEN l.pid IS NULL THEN 'a prepared transaction has enqueued and is still open'
      ELSE format('the transaction of process %s has enqueued and is still open', l.pid)
    END INTO holder
  FROM pg_locks AS l
  WHERE l.relation = closing AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND (l.mode <> 'RowExclusiveLock' OR l.pid IS NULL OR EXISTS (
      SELECT
      FROM pg_locks AS x
      WHERE x.pid = l.pid AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
        AND (closed.tried_xact::text::bigint - x.transactionid::text::bigint) & 4294967295 BETWEEN 1 AND 2147483647
    ))
  LIMIT 1;
  IF FOUND THEN
    RETURN holder;
  END IF;
  IF closed.tried_at > clock_timestamp() - make_interval(secs => least(greatest(pause_seconds, 0), "oncebox".retention_max())) THEN
    RETURN format('producers hold %s', closing);
  END IF;
  UPDATE "oncebox".segment AS s SET tried_at = clock_timestamp(), tried_xact = pg_current_xact_id()
  WHERE s.number = this_turn % 8;
  PERFORM set_config('lock_timeout', end_turn.wait_ms::text, true);
  BEGIN
    EXECUTE format('LOCK TABLE %s IN SHARE MODE', closing);
  EXCEPTION WHEN lock_not_available THEN
    RETURN format('producers hold %s', closing);
  END;
  UPDATE "oncebox".segment AS s
  SET turn = this_turn + 1, is_live = true, is_empty = false, began_at = clock_timestamp(), drained_at = NULL, tried_at = NULL,
    tried_xact = NULL, looked_lane = NULL, looked_id = NULL
  WHERE s.number = next.number;
  PERFORM setval('"oncebox".turn', this_turn + 1);
  RETURN NULL;
END $$;

COMMENT ON FUNCTION oncebox.end_turn(span_seconds double precision, wait_ms integer, pause_seconds double precision) IS 'For relays: has messages go into the next segment; says why it cannot.';

CREATE FUNCTION oncebox.ended_before_edit(scope text, tenant text, key text) RETURNS TABLE(status text, outcome bytea)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT i.status, i.outcome
  FROM "oncebox".inbox AS i
  CROSS JOIN (SELECT "oncebox".edit_root($3) COLLATE "C" AS root) AS r
  WHERE i.scope = $1
    AND i.tenant = $2
    AND (i.key = r.root OR i.key > r.root || ':oncebox-edit-' AND i.key < r.root || ':oncebox-edit.')
    AND "oncebox".edit_root(i.key) = r.root
    AND i.key <> $3
    AND "oncebox".edit_root($3) <> $3
    AND i.status IN ('completed', 'rejected')
  ORDER BY i.created_at
  LIMIT 1
$_$;

CREATE FUNCTION oncebox.enqueue(key text, subject text, payload bytea, headers jsonb DEFAULT '{}'::jsonb, ordering_key text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  new_id bigint;
  this_turn bigint;
BEGIN
  IF "oncebox".is_plain(enqueue.key, enqueue.subject, enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload) IS NOT TRUE THEN
    PERFORM "oncebox".check_message(enqueue.key, enqueue.subject, enqueue.ordering_key, enqueue.headers, enqueue.payload);
  END IF;
  -- A transaction that a crash can undo must not be seen by the relay: make its commit durable.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  FOR attempt IN 1 .. 5 LOOP
    new_id := nextval('"oncebox".message_id_seq');
    this_turn := pg_sequence_last_value('"oncebox".turn');
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      PERFORM "oncebox".check_turn(this_turn);
    END IF;
    CASE this_turn % 8
      WHEN 0 THEN
        INSERT INTO "oncebox".message_0 (id, lane, key, subject, ordering_key, headers, payload)
        SELECT new_id, "oncebox".lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
               enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload
        WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
          AND NOT EXISTS (SELECT FROM "oncebox".message_7 AS b WHERE b.key = enqueue.key)
          AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = enqueue.key)
        ON CONFLICT ON CONSTRAINT message_0_key_unique DO NOTHING;
      WHEN 1 THEN
        INSERT INTO "oncebox".message_1 (id, lane, key, subject, ordering_key, headers, payload)
        SELECT new_id, "oncebox".lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
               enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload
        WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
          AND NOT EXISTS (SELECT FROM "oncebox".message_0 AS b WHERE b.key = enqueue.key)
          AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = enqueue.key)
        ON CONFLICT ON CONSTRAINT message_1_key_unique DO NOTHING;
      WHEN 2 THEN
        INSERT INTO "oncebox".message_2 (id, lane, key, subject, ordering_key, headers, payload)
        SELECT new_id, "oncebox".lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
               enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload
        WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
          AND NOT EXISTS (SELECT FROM "oncebox".message_1 AS b WHERE b.key = enqueue.key)
          AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = enqueue.key)
        ON CONFLICT ON CONSTRAINT message_2_key_unique DO NOTHING;
      WHEN 3 THEN
        INSERT INTO "oncebox".message_3 (id, lane, key, subject, ordering_key, headers, payload)
        SELECT new_id, "oncebox".lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
               enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload
        WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
          AND NOT EXISTS (SELECT FROM "oncebox".message_2 AS b WHERE b.key = enqueue.key)
          AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = enqueue.key)
        ON CONFLICT ON CONSTRAINT message_3_key_unique DO NOTHING;
      WHEN 4 THEN
        INSERT INTO "oncebox".message_4 (id, lane, key, subject, ordering_key, headers, payload)
        SELECT new_id, "oncebox".lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
               enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload
        WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
          AND NOT EXISTS (SELECT FROM "oncebox".message_3 AS b WHERE b.key = enqueue.key)
          AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = enqueue.key)
        ON CONFLICT ON CONSTRAINT message_4_key_unique DO NOTHING;
      WHEN 5 THEN
        INSERT INTO "oncebox".message_5 (id, lane, key, subject, ordering_key, headers, payload)
        SELECT new_id, "oncebox".lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
               enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload
        WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
          AND NOT EXISTS (SELECT FROM "oncebox".message_4 AS b WHERE b.key = enqueue.key)
          AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = enqueue.key)
        ON CONFLICT ON CONSTRAINT message_5_key_unique DO NOTHING;
      WHEN 6 THEN
        INSERT INTO "oncebox".message_6 (id, lane, key, subject, ordering_key, headers, payload)
        SELECT new_id, "oncebox".lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
               enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload
        WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
          AND NOT EXISTS (SELECT FROM "oncebox".message_5 AS b WHERE b.key = enqueue.key)
          AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = enqueue.key)
        ON CONFLICT ON CONSTRAINT message_6_key_unique DO NOTHING;
      WHEN 7 THEN
        INSERT INTO "oncebox".message_7 (id, lane, key, subject, ordering_key, headers, payload)
        SELECT new_id, "oncebox".lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
               enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload
        WHERE pg_sequence_last_value('"oncebox".turn') = this_turn
          AND NOT EXISTS (SELECT FROM "oncebox".message_6 AS b WHERE b.key = enqueue.key)
          AND NOT EXISTS (SELECT FROM "oncebox".delayed AS d WHERE d.key = enqueue.key)
        ON CONFLICT ON CONSTRAINT message_7_key_unique DO NOTHING;
      ELSE
        RAISE EXCEPTION 'the sequence "turn" has no value' USING ERRCODE = '55000',
          HINT = 'Run `oncebox migrate`, which gives it one; a relay does so within a minute.';
    END CASE;
    IF FOUND THEN
      -- Not before the INSERT: without a transaction id this transaction is one that a relay, which
      -- sets its mark and then looks who is still at work, would not see.
      IF pg_sequence_last_value('"oncebox".relay_asleep') = 1 THEN
        PERFORM "oncebox".wake_relay();
      END IF;
      RETURN new_id;
    END IF;
    -- Nothing was written: the turn has ended, the key was found, or it was found and then
    -- cancelled between the two statements.
    IF pg_sequence_last_value('"oncebox".turn') = this_turn
       AND "oncebox".check_enqueued(enqueue.key, enqueue.subject, enqueue.payload) THEN
      RETURN NULL;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'key "%" was deleted while it was enqueued', enqueue.key
    USING ERRCODE = '40001', HINT = 'Nothing was enqueued. Run the transaction again.';
END $$;

COMMENT ON FUNCTION oncebox.enqueue(key text, subject text, payload bytea, headers jsonb, ordering_key text) IS 'Enqueue a message in this transaction. Returns its id, NULL when this very message is already enqueued; error OB001 when the key names another message.';

CREATE FUNCTION oncebox.enqueue_all(keys text[], subjects text[], payloads bytea[], headers jsonb[] DEFAULT NULL::jsonb[], ordering_keys text[] DEFAULT NULL::text[]) RETURNS TABLE(key text, id bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  total integer := coalesce(cardinality(keys), 0);
  ids bigint[];
  written bigint[];
  deleted_key text;
BEGIN
  IF cardinality(subjects) IS DISTINCT FROM total OR cardinality(payloads) IS DISTINCT FROM total
     OR coalesce(cardinality(headers), total) <> total OR coalesce(cardinality(ordering_keys), total) <> total THEN
    RAISE EXCEPTION 'enqueue_all takes arrays of one length: % keys, % subjects, % payloads, % headers, % ordering keys',
      total, cardinality(subjects), cardinality(payloads), cardinality(headers), cardinality(ordering_keys)
      USING ERRCODE = 'OB007';
  END IF;
  IF total > 10000 THEN
    RAISE EXCEPTION 'enqueue_all takes at most 10000 messages, not %', total USING ERRCODE = 'OB007';
  END IF;
  PERFORM "oncebox".check_message(g.key, g.subject, g.ordering_key, g.headers, g.payload)
  FROM unnest(keys, subjects, payloads, enqueue_all.headers, ordering_keys) AS g (key, subject, payload, headers, ordering_key)
  WHERE "oncebox".is_plain(g.key, g.subject, g.ordering_key, coalesce(g.headers, '{}'), g.payload) IS NOT TRUE;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  ids := ARRAY(SELECT nextval('"oncebox".message_id_seq') FROM generate_series(1, total));
  SELECT "oncebox".append(
    ids, array_agg("oncebox".lane_of(coalesce(g.ordering_key, g.key)) ORDER BY g.n), keys, subjects,
    array_agg(g.ordering_key ORDER BY g.n), array_agg(coalesce(g.headers, '{}') ORDER BY g.n), payloads, false
  ) INTO written
  FROM unnest(keys, enqueue_all.headers, ordering_keys) WITH ORDINALITY AS g (key, headers, ordering_key, n);
  -- A key that stands twice in one call gets its id at its first place.
  RETURN QUERY
  SELECT g.key, w.id
  FROM unnest(keys, ids) WITH ORDINALITY AS g (key, id, n)
  LEFT JOIN unnest(written) AS w (id) ON w.id = g.id
  ORDER BY g.n;
  -- A new statement sees the rows that the one above found. The CASE keeps the planner from
  -- comparing those that it inserted: that would cost more than the INSERT.
  SELECT g.key INTO deleted_key
  FROM unnest(keys, subjects, payloads, ids) AS g (key, subject, payload, id)
  LEFT JOIN unnest(written) AS w (id) ON w.id = g.id
  WHERE CASE WHEN w.id IS NULL THEN NOT "oncebox".check_enqueued(g.key, g.subject, g.payload) END;
  IF deleted_key IS NOT NULL THEN
    RAISE EXCEPTION 'key "%" was deleted while it was enqueued', deleted_key
      USING ERRCODE = '40001', HINT = 'Nothing was enqueued. Run the transaction again.';
  END IF;
  IF total > 0 AND (SELECT s.last_value FROM "oncebox".relay_asleep AS s) = 1 THEN
    PERFORM "oncebox".wake_relay();
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.enqueue_all(keys text[], subjects text[], payloads bytea[], headers jsonb[], ordering_keys text[]) IS 'Enqueue many messages in this transaction, at most 10,000; the arrays have one length. Returns a row for each message, in this order, with an id of NULL for one that is already enqueued. As a whole it fails where enqueue() would fail for one of them.';

CREATE FUNCTION oncebox.enqueue_at(key text, subject text, payload bytea, not_before timestamp with time zone, headers jsonb DEFAULT '{}'::jsonb, ordering_key text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  new_id bigint;
BEGIN
  IF enqueue_at.not_before IS NULL THEN
    RAISE EXCEPTION 'not_before is null' USING ERRCODE = 'OB008',
      HINT = 'Give the time before which the message must not be sent, or call enqueue().';
  END IF;
  IF enqueue_at.not_before <= clock_timestamp() AND isfinite(enqueue_at.not_before) THEN
    RETURN "oncebox".enqueue(enqueue_at.key, enqueue_at.subject, enqueue_at.payload, enqueue_at.headers,
                            enqueue_at.ordering_key);
  END IF;
  -- A wrong unit, such as milliseconds for seconds, is found here and not in the year 50000.
  IF NOT isfinite(enqueue_at.not_before) OR enqueue_at.not_before > clock_timestamp() + interval '10 years' THEN
    RAISE EXCEPTION 'not_before is %; the limit is ten years ahead', enqueue_at.not_before USING ERRCODE = 'OB008';
  END IF;
  PERFORM "oncebox".check_message(enqueue_at.key, enqueue_at.subject, enqueue_at.ordering_key, enqueue_at.headers,
                                 enqueue_at.payload);
  -- As in enqueue(): a relay must not see a commit that a crash can undo.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  FOR attempt IN 1 .. 3 LOOP
    new_id := ("oncebox".append(
      ARRAY[nextval('"oncebox".message_id_seq')], '{-1}', ARRAY[enqueue_at.key], ARRAY[enqueue_at.subject], '{NULL}',
      '{"{}"}', '{""}', false
    ))[1];
    IF new_id IS NOT NULL THEN
      INSERT INTO "oncebox".delayed (id, key, subject, ordering_key, headers, payload, not_before)
      VALUES (new_id, enqueue_at.key, enqueue_at.subject, enqueue_at.ordering_key,
              coalesce(enqueue_at.headers, '{}'), enqueue_at.payload, enqueue_at.not_before);
      RETURN new_id;
    END IF;
    IF "oncebox".check_enqueued(enqueue_at.key, enqueue_at.subject, enqueue_at.payload) THEN
      RETURN NULL;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'key "%" was deleted three times while it was enqueued', enqueue_at.key USING ERRCODE = '40001';
END $$;

COMMENT ON FUNCTION oncebox.enqueue_at(key text, subject text, payload bytea, not_before timestamp with time zone, headers jsonb, ordering_key text) IS 'Enqueue a message in this transaction that must not be sent before a time of this database''s clock. Returns an id, NULL when this very message is enqueued already, for any time; error OB001 when the key names another message.';

CREATE FUNCTION oncebox.enqueue_json(key text, subject text, payload jsonb, headers jsonb DEFAULT '{}'::jsonb, ordering_key text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN oncebox.enqueue(key, subject, convert_to((payload)::text, 'UTF8'::name), headers, ordering_key);

COMMENT ON FUNCTION oncebox.enqueue_json(key text, subject text, payload jsonb, headers jsonb, ordering_key text) IS 'As enqueue(), with a payload of JSON, in UTF-8 as PostgreSQL writes it.';

CREATE FUNCTION oncebox.enqueue_json_at(key text, subject text, payload jsonb, not_before timestamp with time zone, headers jsonb DEFAULT '{}'::jsonb, ordering_key text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN oncebox.enqueue_at(key, subject, convert_to((payload)::text, 'UTF8'::name), not_before, headers, ordering_key);

COMMENT ON FUNCTION oncebox.enqueue_json_at(key text, subject text, payload jsonb, not_before timestamp with time zone, headers jsonb, ordering_key text) IS 'enqueue_at() with a payload in JSON.';

CREATE FUNCTION oncebox.enter_action(barrier text, tenant text, key text, is_leased boolean, attempt integer DEFAULT 1) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  entered text := CASE WHEN enter_action.is_leased THEN 'acting' ELSE 'acted' END;
  stored record;
BEGIN
  PERFORM "oncebox".check_barrier(enter_action.barrier, enter_action.tenant, enter_action.key, enter_action.is_leased, enter_action.attempt);
  FOR try IN 1 .. 3 LOOP
    -- Waits for an open transaction that has inserted the row.
    INSERT INTO "oncebox".barrier AS b (barrier, tenant, key, state, attempt)
    VALUES (enter_action.barrier, enter_action.tenant, enter_action.key, entered, enter_action.attempt)
    ON CONFLICT ON CONSTRAINT barrier_pkey DO NOTHING;
    IF FOUND THEN
      RETURN 'act';
    END IF;
    SELECT b.state, b.attempt INTO stored
    FROM "oncebox".barrier AS b
    WHERE b.barrier = enter_action.barrier AND b.tenant = enter_action.tenant AND b.key = enter_action.key
    FOR UPDATE;
    IF FOUND THEN
      IF stored.state = 'acted' THEN
        RETURN 'acted';
      END IF;
      -- A leased run goes on, but another attempt does not step into it; a rejected one may be
      -- tried again by the same attempt or a newer one.
      IF stored.state = 'acting' AND stored.attempt = enter_action.attempt
         OR stored.state = 'rejected' AND stored.attempt <= enter_action.attempt THEN
        UPDATE "oncebox".barrier AS b
        SET state = entered, attempt = enter_action.attempt, xact = pg_current_xact_id(), changed_at = statement_timestamp()
        WHERE b.barrier = enter_action.barrier AND b.tenant = enter_action.tenant AND b.key = enter_action.key;
        RETURN 'act';
      END IF;
      RETURN 'refused';
    END IF;
    -- Not found here means that it was rolled back or swept between the two statements.
  END LOOP;
  RAISE EXCEPTION 'the row of "%" at the barrier went three times while it was asked for', enter_action.key
    USING ERRCODE = '40001';
END $$;

COMMENT ON FUNCTION oncebox.enter_action(barrier text, tenant text, key text, is_leased boolean, attempt integer) IS 'Whether an action of a saga may have its effect in this transaction: act, acted (it had it before) or refused (its compensation came first, or another attempt at it is newer or under way). Error OB010 when it is committed by itself, unless it is leased.';

CREATE FUNCTION oncebox.enter_compensation(barrier text, tenant text, key text, is_leased boolean, attempt integer DEFAULT 1, scope text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  stored record;
  next_state text;
  other text;
  ended text;
BEGIN
  PERFORM "oncebox".check_barrier(enter_compensation.barrier, enter_compensation.tenant, enter_compensation.key, enter_compensation.is_leased, enter_compensation.attempt);
  FOR try IN 1 .. 3 LOOP
    -- The mark that refuses the action, should it come after all.
    INSERT INTO "oncebox".barrier AS b (barrier, tenant, key, state)
    VALUES (enter_compensation.barrier, enter_compensation.tenant, enter_compensation.key, 'refused')
    ON CONFLICT ON CONSTRAINT barrier_pkey DO NOTHING;
    IF FOUND THEN
      RETURN 'nothing';
    END IF;
    SELECT b.state, b.attempt INTO stored
    FROM "oncebox".barrier AS b
    WHERE b.barrier = enter_compensation.barrier AND b.tenant = enter_compensation.tenant
      AND b.key = enter_compensation.key
    FOR UPDATE;
    IF FOUND THEN
      IF stored.state = 'acting' THEN
        RETURN 'wait';
      END IF;
      IF stored.state = 'undoing' AND stored.attempt <> enter_compensation.attempt THEN
        other := concat(enter_compensation.key, ':#' || nullif(stored.attempt, 1), ':undo');
        -- An operator who frees its key waits until this transaction ends.
        SELECT i.status INTO ended
        FROM "oncebox".inbox AS i
        WHERE i.scope = enter_compensation.scope AND i.tenant = enter_compensation.tenant AND i.key = other
        FOR UPDATE;
        -- The other is under way, or it may have undone: it remembers an effect. One that remembers
        -- its answer here, and has no end, is about to run again.
        IF enter_compensation.scope IS NULL OR ended = 'completed'
           OR EXISTS (
             SELECT FROM "oncebox".inbox_claim AS c
             WHERE c.scope = enter_compensation.scope AND c.tenant = enter_compensation.tenant AND c.key = other
           )
           OR EXISTS (
             SELECT FROM "oncebox".inbox_effect AS e
             WHERE e.scope = enter_compensation.scope AND e.tenant = enter_compensation.tenant AND e.key = other
               AND (ended IS NULL OR e.step <> 'barrier' AND e.state <> 'rejected')
           ) THEN
          RETURN 'wait';
        END IF;
        -- Should an operator have it run again, it asks again.
        DELETE FROM "oncebox".inbox_effect AS e
        WHERE e.scope = enter_compensation.scope AND e.tenant = enter_compensation.tenant AND e.key = other
          AND e.step = 'barrier';
      END IF;
      next_state := CASE
        WHEN stored.state IN ('acted', 'undoing') AND enter_compensation.is_leased THEN 'undoing'
        WHEN stored.state IN ('acted', 'undoing') THEN 'undone'
        WHEN stored.state = 'rejected' THEN 'refused'
        ELSE stored.state
      END;
      UPDATE "oncebox".barrier AS b
      SET state = next_state, attempt = enter_compensation.attempt, xact = pg_current_xact_id(),
          changed_at = statement_timestamp()
      WHERE b.barrier = enter_compensation.barrier AND b.tenant = enter_compensation.tenant
        AND b.key = enter_compensation.key
        AND (next_state <> stored.state OR next_state = 'undoing' AND b.attempt <> enter_compensation.attempt);
      RETURN CASE WHEN stored.state IN ('acted', 'undoing') THEN 'undo' ELSE 'nothing' END;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'the row of "%" at the barrier went three times while it was asked for', enter_compensation.key
    USING ERRCODE = '40001';
END $$;

COMMENT ON FUNCTION oncebox.enter_compensation(barrier text, tenant text, key text, is_leased boolean, attempt integer, scope text) IS 'Whether a compensation has something to undo in this transaction: undo, nothing (and the action will never act), or wait (a leased run of it, or of another attempt at undoing it, is under way or may have had its effect). scope: that of the inbox of a leased compensation, where the other attempt is looked up. Error OB010 when the action to undo is committed by itself, unless it is leased.';

CREATE FUNCTION oncebox.expect(subject text, scope text, within_seconds double precision, inbox_database text, is_unseen boolean, operator text, note text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  kept double precision := (SELECT min(r.retention_seconds) FROM "oncebox".relay AS r);
BEGIN
  IF expect.subject !~ '^(>|[^.[:space:]]+([.][^.[:space:]]+)*)$' OR expect.subject ~ '>.' THEN
    RAISE EXCEPTION 'subject % is no pattern', expect.subject
      USING ERRCODE = 'OB011', HINT = 'Write tokens with dots between them; * stands for one token, a last > for one or more.';
  END IF;
  IF within_seconds >= kept THEN
    RAISE EXCEPTION 'relays keep messages for %, so they are gone when they are looked for after %', "oncebox".time_text(kept), "oncebox".time_text(within_seconds)
      USING ERRCODE = 'OB011', HINT = 'Give a shorter --within, or let relays keep messages for longer (--retention).';
  END IF;
  IF inbox_database IS NULL THEN
    PERFORM "oncebox".check_expected_inbox(expect.scope, within_seconds, is_unseen, 'this database');
  END IF;
  IF (SELECT count(*) FROM "oncebox".expectation AS e) >= 100 THEN
    RAISE EXCEPTION 'there are 100 expectations already' USING ERRCODE = 'OB011', HINT = 'Use a pattern for several subjects, or end one: `oncebox expect remove`.';
  END IF;
  DELETE FROM "oncebox".expectation AS e WHERE e.subject = expect.subject AND e.scope = expect.scope;
  INSERT INTO "oncebox".expectation (subject, scope, within_seconds, inbox_database)
  VALUES (expect.subject, expect.scope, expect.within_seconds, expect.inbox_database);
  INSERT INTO "oncebox".audit (operator, note, action, scope, reason)
  VALUES (expect.operator, expect.note, 'expect', expect.scope, format('%s within %s', expect.subject, "oncebox".time_text(expect.within_seconds)));
END $_$;

COMMENT ON FUNCTION oncebox.expect(subject text, scope text, within_seconds double precision, inbox_database text, is_unseen boolean, operator text, note text) IS 'For operators: messages with such a subject must be in that inbox within a number of seconds after their commit. Takes the place of an earlier one for both.';

CREATE FUNCTION oncebox.expect_no_more(subject text, scope text, operator text, note text) RETURNS SETOF bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH gone AS (
    DELETE FROM "oncebox".expectation AS e
    WHERE e.subject = $1 AND e.scope = $2
    RETURNING e.subject, e.scope
  )
  INSERT INTO "oncebox".audit (operator, note, action, scope, reason)
  SELECT $3, $4, 'expect-no-more', g.scope, g.subject
  FROM gone AS g
  RETURNING id
$_$;

COMMENT ON FUNCTION oncebox.expect_no_more(subject text, scope text, operator text, note text) IS 'For operators: ends an expectation. No row when there was none.';

CREATE FUNCTION oncebox.expectations_due() RETURNS TABLE(expectation bigint, scope text, inbox_database text, first_xact xid8, end_xact xid8, is_behind boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
  here bigint := (SELECT c.system_identifier FROM pg_control_system() AS c);
  e "oncebox".expectation;
  due xid8;
  span bigint;
BEGIN
  FOR e IN
    SELECT x.*
    FROM "oncebox".expectation AS x
    WHERE x.looked_at IS NULL OR x.looked_at > clock_timestamp()
      OR x.looked_at <= clock_timestamp() - make_interval(secs => least(x.within_seconds / 4, 60))
    ORDER BY x.id
    FOR UPDATE SKIP LOCKED
  LOOP
    -- A restored dump has the marks of another cluster, and the clock may have been ahead.
    DELETE FROM "oncebox".expectation_mark AS m WHERE m.expectation = e.id AND m.system_identifier <> here;
    UPDATE "oncebox".expectation_mark AS m SET marked_at = clock_timestamp()
    WHERE m.expectation = e.id AND m.marked_at > clock_timestamp();
    IF NOT EXISTS (
      SELECT
      FROM "oncebox".expectation_mark AS m
      WHERE m.expectation = e.id
        AND m.marked_at > clock_timestamp() - make_interval(secs => least(greatest(e.within_seconds / 64, 1), 3600))
    ) THEN
      INSERT INTO "oncebox".expectation_mark (expectation, xact, system_identifier)
      VALUES (e.id, pg_snapshot_xmin(pg_current_snapshot()), here)
      ON CONFLICT ON CONSTRAINT expectation_mark_pkey DO NOTHING;
    END IF;
    first_xact := (SELECT min(m.xact) FROM "oncebox".expectation_mark AS m WHERE m.expectation = e.id);
    due := (
      SELECT max(m.xact)
      FROM "oncebox".expectation_mark AS m
      WHERE m.expectation = e.id AND m.marked_at <= clock_timestamp() - make_interval(secs => e.within_seconds)
    );
    -- Nothing is due as long as no mark is old enough.
    span := coalesce(due::text::bigint - first_xact::text::bigint, 0);
    is_behind := span > 20000;
    span := least(span, 20000);
    end_xact := (first_xact::text::bigint + span)::text::xid8;
    WHILE span > 1 AND (
      SELECT count(*) FROM (SELECT FROM "oncebox".expected_messages(e.id, first_xact, end_xact) LIMIT 50001) AS m
    ) > 50000 LOOP
      span := span / 2;
      is_behind := true;
      end_xact := (first_xact::text::bigint + span)::text::xid8;
    END LOOP;
    IF span = 0 THEN
      first_xact := NULL;
      end_xact := NULL;
    END IF;
    UPDATE "oncebox".expectation AS x SET looked_at = CASE WHEN is_behind THEN x.looked_at ELSE clock_timestamp() END
    WHERE x.id = e.id;
    expectation := e.id;
    scope := e.scope;
    inbox_database := e.inbox_database;
    RETURN NEXT;
  END LOOP;
END $$;

COMMENT ON FUNCTION oncebox.expectations_due() IS 'For relays: which expectations are to be looked at, and which transactions have become due.';

CREATE FUNCTION oncebox.expected_messages(expectation bigint, first_xact xid8, end_xact xid8) RETURNS TABLE(lane smallint, id bigint, key text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT m.lane, m.id, m.key
  FROM "oncebox".expectation AS e
  CROSS JOIN "oncebox".lane AS l
  CROSS JOIN LATERAL (
    SELECT m.lane, m.id, m.key, m.subject
    FROM "oncebox".log AS m
    WHERE m.lane = l.lane AND m.xact >= $2 AND m.xact < $3
    OFFSET 0
  ) AS m
  WHERE e.id = $1
    AND m.subject ~ "oncebox".subject_shape(e.subject)
    AND NOT EXISTS (SELECT FROM "oncebox".discarded AS d WHERE d.lane = m.lane AND d.id = m.id)
    AND NOT EXISTS (SELECT FROM "oncebox".unhandled AS u WHERE u.expectation = e.id AND u.lane = m.lane AND u.id = m.id)
  UNION ALL
  SELECT u.lane, u.id, u.key
  FROM "oncebox".unhandled AS u
  WHERE u.expectation = $1
$_$;

COMMENT ON FUNCTION oncebox.expected_messages(expectation bigint, first_xact xid8, end_xact xid8) IS 'For relays: the messages that must be in an inbox.';

CREATE FUNCTION oncebox.find_saga(type text, business_id text, key text, began_with bytea) RETURNS TABLE(id bigint, saga_key text, is_same_id boolean, is_same_data boolean)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT s.id, s.key, s.type = $1 AND s.business_id = $2 AS is_same_id,
         s.began_with = $4::bytea AS is_same_data
  FROM "oncebox".saga AS s
  WHERE (s.type = $1 AND s.business_id = $2) OR s.key = $3
  ORDER BY is_same_id DESC
  LIMIT 1
$_$;

COMMENT ON FUNCTION oncebox.find_saga(type text, business_id text, key text, began_with bytea) IS 'For producers that start sagas: the saga that has a business id, or a key, without its data.';

CREATE FUNCTION oncebox.find_unsent(retention_seconds double precision, most integer, OUT number smallint, OUT unsent bigint, OUT unsent_id bigint, OUT is_done boolean) RETURNS SETOF record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  part "oncebox".segment;
  seen record;
BEGIN
  SELECT s.* INTO part FROM "oncebox".old_segments(retention_seconds) AS s LIMIT 1;
  IF NOT FOUND OR part.looked_lane = 32767 OR NOT EXISTS (SELECT FROM "oncebox".reset) THEN
    RETURN;
  END IF;
  number := part.number;
  EXECUTE format($seen$
    WITH looked_at AS MATERIALIZED (
      SELECT m.*, x.snap
      FROM "oncebox".reset AS x
      JOIN "oncebox".lane_cursor AS c ON c.lane = x.lane
      CROSS JOIN LATERAL (
        SELECT n.lane, n.id, n.xact, n.xmin AS row_xmin
        FROM "oncebox".message_%1$s AS n
        WHERE n.lane = x.lane AND n.id <= c.floor AND n.id > CASE WHEN x.lane = $1 THEN $2 ELSE 0 END
        ORDER BY n.id
        LIMIT $3
      ) AS m
      WHERE $1 IS NULL OR x.lane >= $1
      ORDER BY m.lane, m.id
      LIMIT $3
    )
    SELECT
      (SELECT count(*) FROM looked_at) AS rows,
      l.lane AS last_lane,
      l.id AS last_id,
      ARRAY(
        SELECT m.id
        FROM looked_at AS m
        WHERE NOT ("oncebox".written_by(m.row_xmin) < m.xact OR pg_visible_in_snapshot("oncebox".written_by(m.row_xmin), m.snap))
          AND NOT EXISTS (SELECT FROM "oncebox".replay AS r WHERE r.lane = m.lane AND r.id = m.id)
          AND NOT EXISTS (SELECT FROM "oncebox".discarded AS d WHERE d.lane = m.lane AND d.id = m.id)
      ) AS ids
    FROM looked_at AS l
    ORDER BY l.lane DESC, l.id DESC
    LIMIT 1
  $seen$, number) INTO seen USING part.looked_lane, part.looked_id, most;
  unsent := 0;
  IF cardinality(seen.ids) > 0 THEN
    PERFORM FROM "oncebox".lane AS l ORDER BY l.lane FOR UPDATE;
    EXECUTE format($park$
      INSERT INTO "oncebox".parked (
        lane, id, turn, ordering_key, attempts, next_attempt_at, error, key, subject, headers, payload, created_at
      )
      SELECT
        m.lane, m.id, $1, m.ordering_key, 0,
        CASE WHEN m.ordering_key IS NULL OR row_number() OVER (PARTITION BY m.lane, m.ordering_key ORDER BY m.id) = 1
          THEN clock_timestamp() END,
        'written below the floor of its lane after a restore', m.key, m.subject, m.headers, m.payload, m.created_at
      FROM "oncebox".lane AS l
      JOIN "oncebox".message_%1$s AS m ON m.lane = l.lane AND m.id = ANY ($2)
      ON CONFLICT ON CONSTRAINT parked_pkey DO NOTHING
    $park$, number) USING part.turn, seen.ids;
    GET DIAGNOSTICS unsent = ROW_COUNT;
    unsent_id := (SELECT max(f.id) FROM unnest(seen.ids) AS f (id));
  END IF;
  is_done := coalesce(seen.rows, 0) < most;
  UPDATE "oncebox".segment AS s
  SET looked_lane = CASE WHEN is_done THEN 32767 ELSE seen.last_lane END, looked_id = seen.last_id
  WHERE s.number = find_unsent.number;
  RETURN NEXT;
END $_$;

COMMENT ON FUNCTION oncebox.find_unsent(retention_seconds double precision, most integer, OUT number smallint, OUT unsent bigint, OUT unsent_id bigint, OUT is_done boolean) IS 'For relays, and in prune_segment() for operators: in a restored database, looks for messages that were never sent, before their segment is emptied.';

CREATE FUNCTION oncebox.finish_leased(scope text, key text, owner uuid, epoch bigint, outcome json DEFAULT NULL::json, status text DEFAULT 'completed'::text, tenant text DEFAULT ''::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  stored bytea := CASE WHEN json_typeof(finish_leased.outcome) <> 'null' THEN convert_to(finish_leased.outcome::text, 'UTF8') END;
BEGIN
  IF finish_leased.status IS NULL OR finish_leased.status NOT IN ('completed', 'rejected') OR octet_length(stored) > 1048576 THEN
    RAISE EXCEPTION 'status % is neither "completed" nor "rejected", or the outcome of % bytes is over 1048576 bytes (1 MiB)',
      coalesce('"' || left(finish_leased.status, 300) || '"', 'null'), coalesce(octet_length(stored), 0)
      USING ERRCODE = 'OB011', HINT = 'A message that is given up is buried: bury_leased().';
  END IF;
  PERFORM "oncebox".refuse_uncommitted(c.xmin, 'the claim, or its renewal,')
  FROM "oncebox".inbox_claim AS c
  WHERE c.scope = finish_leased.scope AND c.tenant = finish_leased.tenant AND c.key = finish_leased.key;
  IF EXISTS (
    SELECT
    FROM "oncebox".inbox_effect AS e
    JOIN "oncebox".inbox_claim AS c USING (scope, tenant, key, epoch)
    WHERE e.scope = finish_leased.scope AND e.tenant = finish_leased.tenant AND e.key = finish_leased.key
      AND e.state = 'started' AND c.owner = finish_leased.owner AND c.epoch = finish_leased.epoch
  ) THEN
    RAISE EXCEPTION 'an effect of key "%" that this claim began has not ended', left(finish_leased.key, 300)
      USING ERRCODE = 'OB010', HINT = 'end_effect() first, or release_leased() when nobody knows whether it happened.';
  END IF;
  IF NOT "oncebox".end_leased(finish_leased.scope, finish_leased.tenant, finish_leased.key, finish_leased.owner, finish_leased.epoch,
                             finish_leased.status, stored) THEN
    RAISE EXCEPTION 'the lease of key % in scope % is lost: the key has another owner, or has ended',
      coalesce('"' || left(finish_leased.key, 300) || '"', 'null'), coalesce('"' || left(finish_leased.scope, 300) || '"', 'null')
      USING ERRCODE = 'OB014', HINT = 'Roll back, and leave the message to its new owner: it is delivered again, or answered as a copy.';
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.finish_leased(scope text, key text, owner uuid, epoch bigint, outcome json, status text, tenant text) IS 'Ends a claim as completed or rejected: the last statement of the transaction with the final writes of the handler. Error OB014 when the lease is lost, so that nothing of it is committed. The effects of the key are forgotten.';

CREATE FUNCTION oncebox.follow_lines(scope text, behind_max integer DEFAULT NULL::integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  PERFORM "oncebox".check_inbox_names(follow_lines.scope, '');
  IF follow_lines.behind_max NOT BETWEEN 1 AND 100000 THEN
    RAISE EXCEPTION 'behind_max % is not 1 to 100000', follow_lines.behind_max
      USING ERRCODE = 'OB011', HINT = 'So many messages of one ordering key may wait behind its dead letter; NULL lets them overtake it.';
  END IF;
  UPDATE "oncebox".inbox_scope AS s
  SET behind_max = follow_lines.behind_max
  WHERE s.scope = follow_lines.scope AND s.behind_max IS DISTINCT FROM follow_lines.behind_max;
  PERFORM "oncebox".advance_line(follow_lines.scope, l.ordering_key)
  FROM (SELECT DISTINCT b.ordering_key FROM "oncebox".inbox_behind AS b WHERE b.scope = follow_lines.scope) AS l;
  RETURN EXISTS (SELECT FROM "oncebox".dead_letter AS d WHERE d.scope = follow_lines.scope AND d.ordering_key IS NOT NULL)
      OR EXISTS (SELECT FROM "oncebox".inbox_behind AS b WHERE b.scope = follow_lines.scope);
END $$;

COMMENT ON FUNCTION oncebox.follow_lines(scope text, behind_max integer) IS 'Says, when a consumer has the right to consume and has found its place in the stream, how many messages of an ordering key may wait for a dead letter (NULL, and where there is no strict order: they overtake it). Answers whether the scope has lines that are stopped: then ask wait_in_line() before each claim, and next_in_line() every second.';

CREATE FUNCTION oncebox.follower(lane smallint, ordering_key text, id bigint) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT least(
    (SELECT min(p.id) FROM "oncebox".parked AS p WHERE p.lane = $1 AND p.ordering_key = $2 AND p.id > $3 AND p.dead_at IS NULL AND p.replay = 0),
    (SELECT min(p.id) FROM "oncebox".parked AS p WHERE p.lane = $1 AND p.ordering_key = $2 AND p.id > $3 AND p.dead_at IS NOT NULL AND p.replay = 0)
  )
$_$;

CREATE FUNCTION oncebox.forget_attempts(scope text, key text, tenant text DEFAULT ''::text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  DELETE FROM "oncebox".inbox_attempt AS a
  WHERE a.scope = $1
    AND a.tenant = $3
    AND a.key = $2
    AND EXISTS (SELECT FROM "oncebox".inbox AS i WHERE i.scope = a.scope AND i.tenant = a.tenant AND i.key = a.key)
$_$;

COMMENT ON FUNCTION oncebox.forget_attempts(scope text, key text, tenant text) IS 'Forgets how often a message was tried, once its key has ended: after the COMMIT of one that had been delivered before.';

CREATE FUNCTION oncebox.forget_emptied(most integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  oldest bigint := (SELECT min(s.turn) FROM "oncebox".segment AS s WHERE NOT s.is_empty);
  deleted bigint;
  is_full boolean;
BEGIN
  DELETE FROM "oncebox".discarded AS d
  USING (SELECT o.lane, o.id FROM "oncebox".discarded AS o WHERE o.turn < oldest ORDER BY o.turn LIMIT most) AS old
  WHERE d.lane = old.lane AND d.id = old.id;
  GET DIAGNOSTICS deleted = ROW_COUNT;
  is_full := deleted >= most;
  DELETE FROM "oncebox".replay AS r
  USING (
    SELECT o.lane, o.id
    FROM "oncebox".replay AS o
    WHERE o.turn < oldest AND NOT EXISTS (SELECT FROM "oncebox".message AS m WHERE m.lane = o.lane AND m.id = o.id)
    ORDER BY o.turn
    LIMIT most
  ) AS old
  WHERE r.lane = old.lane AND r.id = old.id;
  GET DIAGNOSTICS deleted = ROW_COUNT;
  RETURN is_full OR deleted >= most;
END $$;

COMMENT ON FUNCTION oncebox.forget_emptied(most integer) IS 'For relays, and in prune_segment() for operators: deletes the notes about messages whose segments are emptied.';

CREATE FUNCTION oncebox.forget_failing(scope text, tenant text, key text, message text, by text, note text) RETURNS SETOF bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH gone AS (
    DELETE FROM "oncebox".inbox_attempt AS a
    WHERE a.scope = $1
      AND a.tenant = $2
      AND a.key = $3
      AND a.message = $4
    RETURNING a.scope, a.key, a.subject, a.reason
  )
  INSERT INTO "oncebox".audit (operator, note, action, scope, key, subject, reason)
  SELECT $5, $6, 'bury', g.scope, g.key, g.subject, g.reason
  FROM gone AS g
  RETURNING id
$_$;

COMMENT ON FUNCTION oncebox.forget_failing(scope text, tenant text, key text, message text, by text, note text) IS 'For operators: forgets a failing message that its stream has no more.';

CREATE FUNCTION oncebox.forget_kept() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  gone bigint;
BEGIN
  DELETE FROM "oncebox".kept AS k
  WHERE k.audit IN (
    SELECT o.audit
    FROM "oncebox".kept AS o
    WHERE o.kept_at < clock_timestamp() - "oncebox".kept_for()
    ORDER BY o.kept_at
    LIMIT 10000
  );
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

COMMENT ON FUNCTION oncebox.forget_kept() IS 'For relays: forgets rows that operators discarded more than a day ago. Returns how many; 10,000 means that there may be more.';

CREATE FUNCTION oncebox.forget_tries(scope text, tenant text, key text) RETURNS void
    LANGUAGE sql
    AS $_$
  DELETE FROM "oncebox".inbox_snooze AS p WHERE p.scope = $1 AND p.tenant = $2 AND p.key = $3;
  DELETE FROM "oncebox".inbox_attempt AS a WHERE a.scope = $1 AND a.tenant = $2 AND a.key = $3
$_$;

CREATE FUNCTION oncebox.give_up_leased(scope text, tenant text, key text, owner uuid, epoch bigint, subject text, headers jsonb, payload bytea, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, reason text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF NOT "oncebox".end_leased(scope, tenant, key, owner, epoch, 'dead', convert_to(reason, 'UTF8')) THEN
    RETURN false;
  END IF;
  PERFORM "oncebox".record_dead_letter(scope, tenant, key, subject, headers, payload, stream, stream_sequence, stored_at, deliveries, reason),
          "oncebox".forget_tries(scope, tenant, key);
  RETURN true;
END $$;

CREATE FUNCTION oncebox.give_up_parked(lane smallint, ids bigint[], by text, note text, kind text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
  PERFORM FROM "oncebox".lane AS l WHERE l.lane = $1 FOR UPDATE;
  PERFORM "oncebox".bound_kept();
  RETURN QUERY
  WITH gone AS (
    DELETE FROM "oncebox".parked AS p
    WHERE p.lane = $1
      AND p.id = ANY ($2)
      AND CASE $5::text
        WHEN 'dead' THEN p.dead_at IS NOT NULL
        WHEN 'parked' THEN p.dead_at IS NULL AND p.replay = 0
        ELSE p.dead_at IS NULL AND p.replay > 0
      END
    RETURNING p.*
  ),
  followed AS (
    UPDATE "oncebox".parked AS p
    SET next_attempt_at = clock_timestamp()
    FROM (SELECT DISTINCT g.lane, g.ordering_key FROM gone AS g WHERE g.ordering_key IS NOT NULL) AS s
    CROSS JOIN LATERAL (
      SELECT f.id
      FROM "oncebox".parked AS f
      WHERE f.lane = s.lane
        AND f.ordering_key = s.ordering_key
        AND f.dead_at IS NULL
        AND NOT EXISTS (SELECT FROM gone AS g WHERE g.id = f.id)
      ORDER BY f.id
      LIMIT 1
    ) AS first
    WHERE p.lane = s.lane AND p.id = first.id AND p.next_attempt_at IS NULL
  ),
  discarded AS (
    INSERT INTO "oncebox".discarded (lane, id)
    SELECT g.lane, g.id
    FROM gone AS g
    WHERE g.replay = 0
  ),
  cancelled AS (
    UPDATE "oncebox".replay AS r
    SET cancelled = g.replay
    FROM gone AS g
    WHERE g.replay > 0 AND r.lane = g.lane AND r.id = g.id
  ),
  noted AS (
    INSERT INTO "oncebox".audit (operator, note, action, lane, message_id, key, subject, reason)
    SELECT $3, $4, CASE g.replay WHEN 0 THEN 'discard' ELSE 'cancel' END, g.lane, g.id, g.key, g.subject, g.error
    FROM gone AS g
    RETURNING audit.id, message_id
  ),
  kept AS (
    INSERT INTO "oncebox".kept (audit, origin, lane, id, lane_floor, follower, bytes, columns, payload)
    SELECT n.id, 'parked', g.lane, g.id, c.floor, "oncebox".follower(g.lane, g.ordering_key, g.id), octet_length(g.payload),
           to_jsonb(g) - 'payload', g.payload
    FROM noted AS n
    JOIN gone AS g ON g.id = n.message_id
    JOIN "oncebox".lane_cursor AS c ON c.lane = g.lane
    WHERE g.replay = 0
  )
  SELECT n.message_id
  FROM noted AS n;
END $_$;

COMMENT ON FUNCTION oncebox.give_up_parked(lane smallint, ids bigint[], by text, note text, kind text) IS 'For operators: gives messages or replays of a lane up, each if it is still dead, parked or replay, as kind says, and keeps the messages for a day, see undo_discard(). Returns their ids.';

CREATE FUNCTION oncebox.readable_headers(headers jsonb) RETURNS text
    LANGUAGE plpgsql STABLE STRICT
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  PERFORM convert_to(headers::text, 'UTF8');
  RETURN headers::text;
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
  RETURN '"unreadable"';
END $$;

CREATE FUNCTION oncebox.headers_text(headers jsonb) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE WHEN (getdatabaseencoding() = 'UTF8'::name) THEN (headers)::text ELSE oncebox.readable_headers(headers) END;

COMMENT ON FUNCTION oncebox.headers_text(headers jsonb) IS 'For relays and operators: headers as text in UTF-8; "unreadable" when they have no such form.';

CREATE FUNCTION oncebox.inbox_copy(stream text, stream_sequence bigint, stored_at timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN COALESCE(((((stream || ' '::text) || stream_sequence) || ' '::text) || (floor((EXTRACT(epoch FROM stored_at) * (1000000)::numeric)))::bigint), ''::text);

CREATE FUNCTION oncebox.inbox_fingerprint(payload bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN sha256((('\x6f6e6365626f78207061796c6f61642031'::bytea || '\x00'::bytea) || payload));

CREATE FUNCTION oncebox.inbox_lock(scope text, tenant text, key text) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ((('x'::text || encode(SUBSTRING(sha256((((((((((int8send((15)::bigint) || '\x6f6e6365626f7820696e626f782031'::bytea) || int8send((octet_length('oncebox'::text))::bigint)) || '\x6f6e6365626f78'::bytea) || int8send((octet_length(convert_to(scope, 'UTF8'::name)))::bigint)) || convert_to(scope, 'UTF8'::name)) || int8send((octet_length(convert_to(tenant, 'UTF8'::name)))::bigint)) || convert_to(tenant, 'UTF8'::name)) || int8send((octet_length(convert_to(key, 'UTF8'::name)))::bigint)) || convert_to(key, 'UTF8'::name))) FROM 1 FOR 8), 'hex'::text)))::bit(64))::bigint;

CREATE FUNCTION oncebox.inbox_places(most integer) RETURNS TABLE(scope text, tenant text)
    LANGUAGE sql STABLE ROWS 10
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH RECURSIVE found AS (
    (
      SELECT i.scope, i.tenant, 1 AS place
      FROM "oncebox".inbox AS i
      ORDER BY i.scope, i.tenant
      LIMIT 1
    )
    UNION ALL
    SELECT next.scope, next.tenant, f.place + 1
    FROM found AS f
    CROSS JOIN LATERAL (
      SELECT i.scope, i.tenant
      FROM "oncebox".inbox AS i
      WHERE (i.scope, i.tenant) > (f.scope, f.tenant)
      ORDER BY i.scope, i.tenant
      LIMIT 1
    ) AS next
    WHERE f.place < $1
  )
  SELECT f.scope::text, f.tenant::text FROM found AS f
$_$;

COMMENT ON FUNCTION oncebox.inbox_places(most integer) IS 'The inboxes of this database, each of a scope and a tenant, from one to the next by the index, up to a limit.';

CREATE FUNCTION oncebox.is_in_store(headers jsonb, payload bytea) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (SELECT COALESCE(bool_or(((lower(h.name) = 'oncebox-object-digest'::text) AND (h.text = ('SHA-256='::text || translate(encode(sha256(is_in_store.payload), 'base64'::text), '+/'::text, '-_'::text))))), false) AS "coalesce" FROM jsonb_each_text(is_in_store.headers) h(name, text));

CREATE FUNCTION oncebox.is_own(row_xmin xid) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
  own bigint := pg_current_xact_id_if_assigned()::text::bigint;
  above bigint := (row_xmin::text::bigint - own) & 4294967295;
BEGIN
  IF own IS NULL OR above > 2147483647 OR row_xmin::text::bigint < 3 THEN
    RETURN false;
  END IF;
  RETURN pg_xact_status((own + above)::text::xid8) = 'in progress';
END $$;

CREATE FUNCTION oncebox.is_plain(key text, subject text, ordering_key text, headers jsonb, payload bytea) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((octet_length(key) <= 66) AND ((key COLLATE "C") ~ '^[!-$&-9;-~]+(:[a-z0-9][a-z0-9._-]*)*$'::text) AND (strpos(key, ':undo:undo'::text) = 0) AND (octet_length(subject) <= 255) AND ((subject COLLATE "C") ~ '^[A-Za-z0-9-][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$'::text) AND (NOT starts_with(subject, 'oncebox.events.'::text)) AND ((ordering_key IS NULL) OR ((octet_length(ordering_key) <= 255) AND ((ordering_key COLLATE "C") ~ '^[!-~]+$'::text))) AND (headers = '{}'::jsonb) AND (octet_length(payload) <= 67108864));

CREATE TABLE oncebox.canary (
    id bigint NOT NULL,
    kind text NOT NULL,
    state text DEFAULT 'running'::text NOT NULL,
    step integer DEFAULT 1 NOT NULL,
    room integer DEFAULT 1 NOT NULL,
    watch_seconds double precision NOT NULL,
    selected integer DEFAULT 0 NOT NULL,
    watched integer DEFAULT 0 NOT NULL,
    good integer DEFAULT 0 NOT NULL,
    failed integer DEFAULT 0 NOT NULL,
    skipped integer DEFAULT 0 NOT NULL,
    reason text,
    fault text,
    fault_since timestamp with time zone,
    database_user text DEFAULT SESSION_USER NOT NULL,
    operator text,
    note text,
    command text NOT NULL COLLATE pg_catalog."C",
    began_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT canary_ended CHECK (((ended_at IS NULL) = (state = 'running'::text))),
    CONSTRAINT canary_kind CHECK ((kind = ANY (ARRAY['letter'::text, 'message'::text]))),
    CONSTRAINT canary_state CHECK ((state = ANY (ARRAY['running'::text, 'failed'::text, 'stopped'::text, 'done'::text]))),
    CONSTRAINT canary_watch CHECK (((watch_seconds >= (1)::double precision) AND (watch_seconds <= (86400)::double precision)))
);

COMMENT ON TABLE oncebox.canary IS 'Retries in steps of 1, 10, 100 and the rest. One that has ended is kept for a week, and of several the newest 100.';

COMMENT ON COLUMN oncebox.canary.state IS 'failed: it stopped by itself, and reason says at which row; stopped: an operator stopped it.';

COMMENT ON COLUMN oncebox.canary.room IS 'How many rows this step may still retry; the rest has steps of 100, and 1,000 rows without a verdict.';

COMMENT ON COLUMN oncebox.canary.watched IS 'Rows that were retried and have no verdict yet.';

COMMENT ON COLUMN oncebox.canary.fault IS 'Why the next row could not be retried when it was last tried.';

CREATE FUNCTION oncebox.judge_canary(INOUT c oncebox.canary) RETURNS oncebox.canary
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  r "oncebox".canary_row;
  verdict text;
  why text;
  failed text;
  late text;
BEGIN
  FOR r IN SELECT w.* FROM "oncebox".canary_row AS w WHERE w.canary = c.id AND w.state = 'watched' ORDER BY w.place LOOP
    SELECT v.verdict, v.why INTO verdict, why FROM "oncebox".canary_verdict(r) AS v;
    IF verdict = 'watched' THEN
      IF r.retried_at < clock_timestamp() - make_interval(secs => c.watch_seconds) THEN
        late := coalesce(late, format('no verdict within %s s: %s', c.watch_seconds, "oncebox".canary_row_name(r)));
      END IF;
      CONTINUE;
    END IF;
    UPDATE "oncebox".canary_row AS w SET state = verdict WHERE w.canary = c.id AND w.place = r.place;
    c.watched := c.watched - 1;
    CASE verdict
      WHEN 'good' THEN c.good := c.good + 1;
      WHEN 'skipped' THEN c.skipped := c.skipped + 1;
      ELSE
        c.failed := c.failed + 1;
        failed := coalesce(failed, format('failed again: %s: %s', "oncebox".canary_row_name(r), why));
    END CASE;
  END LOOP;
  IF failed IS NOT NULL OR late IS NOT NULL THEN
    c.state := 'failed';
    c.reason := coalesce(failed, late);
  END IF;
END $$;

CREATE FUNCTION oncebox.keep_line() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF EXISTS (SELECT FROM "oncebox".inbox_behind AS b WHERE b.scope = OLD.scope AND b.ordering_key = OLD.ordering_key) THEN
    RETURN NULL;
  END IF;
  RETURN OLD;
END $$;

CREATE FUNCTION oncebox.kept_for() RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN '1 day'::interval;

CREATE FUNCTION oncebox.lane_count() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 16;

COMMENT ON FUNCTION oncebox.lane_count() IS 'How many lanes the outbox was installed with; table lane has a row for each.';

CREATE FUNCTION oncebox.lane_of(ordering_key text) RETURNS smallint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (mod((hashtextextended(ordering_key, (0)::bigint) & (1048575)::bigint), (16)::bigint))::smallint;

CREATE FUNCTION oncebox.lead_consumer(scope text, stream text, durable text, pause interval DEFAULT '00:00:30'::interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  lock bigint;
BEGIN
  IF lead_consumer.stream IS NULL OR lead_consumer.durable IS NULL OR lead_consumer.pause IS NULL
     OR extract(epoch FROM lead_consumer.pause) NOT BETWEEN 1 AND 3600 THEN
    RAISE EXCEPTION 'stream %, durable % or pause % is missing, or the pause is not 1 second to 1 hour',
      lead_consumer.stream, lead_consumer.durable, lead_consumer.pause
      USING ERRCODE = 'OB011', HINT = 'They are those of the JetStream consumer; a process that is silent for the pause loses the right to consume.';
  END IF;
  PERFORM "oncebox".check_inbox_names(lead_consumer.scope, '');
  SELECT ('x' || encode(substring(sha256(
    int8send(14) || 'oncebox lead 1'::bytea
    || string_agg(int8send(octet_length(convert_to(f.field, 'UTF8'))) || convert_to(f.field, 'UTF8'), ''::bytea ORDER BY f.place)
  ) FROM 1 FOR 8), 'hex'))::bit(64)::bigint INTO lock
  FROM unnest(ARRAY['oncebox', lead_consumer.scope, lead_consumer.stream, lead_consumer.durable])
    WITH ORDINALITY AS f (field, place);
  PERFORM set_config('idle_in_transaction_session_timeout', (extract(epoch FROM lead_consumer.pause) * 1000)::bigint::text, true),
          CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', true) END;
  RETURN pg_try_advisory_xact_lock(lock);
END $$;

COMMENT ON FUNCTION oncebox.lead_consumer(scope text, stream text, durable text, pause interval) IS 'Whether this transaction may consume, alone, in strict order; asked again in it until it may. The right ends with the transaction, which stays open: send a statement in it more often than every pause, for PostgreSQL ends its session otherwise.';

CREATE TABLE oncebox.kept (
    audit bigint NOT NULL,
    origin text NOT NULL,
    lane smallint,
    id bigint NOT NULL,
    lane_floor bigint,
    follower bigint,
    bytes bigint NOT NULL,
    kept_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    columns jsonb NOT NULL,
    payload bytea NOT NULL,
    CONSTRAINT kept_origin CHECK (((origin = ANY (ARRAY['dead_letter'::text, 'parked'::text, 'edited'::text])) AND ((origin <> 'dead_letter'::text) = (lane IS NOT NULL))))
);

COMMENT ON TABLE oncebox.kept IS 'Rows that operators discarded or edited, as they were: for a day, and the newest 100,000 of at most 1 GiB. audit is the row that records it.';

COMMENT ON COLUMN oncebox.kept.lane_floor IS 'All messages of the lane up to this id had been sent, or set aside, by then.';

COMMENT ON COLUMN oncebox.kept.follower IS 'The next message of its ordering key that was set aside then.';

COMMENT ON COLUMN oncebox.kept.columns IS 'All columns of the row but the payload; of an edited one also edited, the new key.';

CREATE FUNCTION oncebox.letter_obstacle(k oncebox.kept) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  SELECT CASE
    WHEN d.ordering_key IS NOT NULL
      THEN 'messages of its ordering key may have run since: they waited behind it until its discard'
    WHEN d.key IS NULL THEN (
      SELECT format('a copy of it died again: dead letter %s', l.id)
      FROM "oncebox".dead_letter AS l
      WHERE l.scope = d.scope AND l.stream = d.stream AND l.stream_sequence = d.stream_sequence AND l.stored_at = d.stored_at
    )
    ELSE coalesce(
      (SELECT format('a message of its key died since: dead letter %s', min(l.id))
       FROM "oncebox".dead_letter AS l
       WHERE l.key = d.key AND l.scope = d.scope AND l.tenant = d.tenant AND l.created_at > k.kept_at
       HAVING count(*) > 0),
      (SELECT format('its key was settled again since, as %s', i.status)
       FROM "oncebox".inbox AS i
       WHERE i.scope = d.scope AND i.tenant = d.tenant AND i.key = d.key AND i.created_at > k.kept_at),
      (SELECT 'a message of its key is being handled'
       FROM "oncebox".inbox_claim AS c
       WHERE c.scope = d.scope AND c.tenant = d.tenant AND c.key = d.key AND c.created_at > k.kept_at),
      (SELECT 'a message of its key is failing'
       FROM "oncebox".inbox_attempt AS a
       WHERE a.scope = d.scope AND a.tenant = d.tenant AND a.key = d.key AND a.first_at > k.kept_at
       LIMIT 1)
    )
  END
  FROM jsonb_populate_record(NULL::"oncebox".dead_letter, k.columns) AS d
$$;

CREATE FUNCTION oncebox.line_of(headers jsonb) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (SELECT CASE WHEN (octet_length(k.line) <= 255) THEN k.line ELSE encode(sha256(convert_to(k.line, 'UTF8'::name)), 'hex'::text) END AS encode FROM (SELECT CASE jsonb_typeof(h.value) WHEN 'array'::text THEN (h.value ->> 0) ELSE (h.value #>> '{}'::text[]) END AS line FROM jsonb_each(line_of.headers) h(name, value) WHERE (lower(h.name) = 'oncebox-ordering-key'::text) LIMIT 1) k);

CREATE FUNCTION oncebox.list_delayed(of_key text, most integer DEFAULT 1000) RETURNS TABLE(key text, subject text, ordering_key text, not_before timestamp with time zone, created_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT d.key, d.subject, d.ordering_key, d.not_before, d.created_at
  FROM "oncebox".delayed AS d
  WHERE d.key = $1 OR d.key > $1 || ':' AND d.key < $1 || ';'
  ORDER BY d.key
  LIMIT least($2, 10000)
$_$;

COMMENT ON FUNCTION oncebox.list_delayed(of_key text, most integer) IS 'The delayed message with this key, and those of the steps below it; 10000 at most.';

CREATE FUNCTION oncebox.look_for_unhandled() RETURNS TABLE(expectation bigint, scope text, inbox_database text, first_xact xid8, end_xact xid8, is_behind boolean, fault text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
  e record;
  lanes smallint[];
  ids bigint[];
BEGIN
  FOR e IN SELECT d.* FROM "oncebox".expectations_due() AS d LOOP
    fault := NULL;
    IF e.inbox_database IS NULL THEN
      BEGIN
        WITH expected AS MATERIALIZED (
          SELECT m.* FROM "oncebox".expected_messages(e.expectation, e.first_xact, e.end_xact) AS m
        ),
        arrived AS MATERIALIZED (
          SELECT k.key FROM "oncebox".arrived_keys(e.scope, (SELECT array_agg(x.key) FROM expected AS x)) AS k (key)
        )
        SELECT array_agg(x.lane), array_agg(x.id) INTO lanes, ids
        FROM expected AS x
        WHERE NOT EXISTS (SELECT FROM arrived AS a WHERE a.key = x.key);
        PERFORM "oncebox".note_unhandled(e.expectation, e.first_xact, e.end_xact, lanes, ids);
      EXCEPTION WHEN OTHERS THEN
        fault := SQLERRM;
      END;
    END IF;
    RETURN QUERY SELECT e.expectation, e.scope, e.inbox_database, e.first_xact, e.end_xact, e.is_behind AND fault IS NULL, fault;
  END LOOP;
END $$;

COMMENT ON FUNCTION oncebox.look_for_unhandled() IS 'For relays: looks for messages that are not in their inbox in time.';

CREATE FUNCTION oncebox.look_up_copies(scope text, tenants text[], keys text[], fingerprints bytea[]) RETURNS text[]
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  asked integer := cardinality(look_up_copies.keys);
BEGIN
  IF asked IS NULL OR asked > 1000
     OR (cardinality(look_up_copies.tenants), cardinality(look_up_copies.fingerprints)) IS DISTINCT FROM (asked, asked) THEN
    RAISE EXCEPTION '% keys, % tenants and % fingerprints are looked up', coalesce(asked, 0),
      coalesce(cardinality(look_up_copies.tenants), 0), coalesce(cardinality(look_up_copies.fingerprints), 0)
      USING ERRCODE = 'OB011', HINT = 'At most 1000 keys are looked up at once, each with a tenant and a fingerprint.';
  END IF;
  RETURN ARRAY(
    SELECT s.answer
    FROM unnest(look_up_copies.tenants, look_up_copies.keys, look_up_copies.fingerprints)
      WITH ORDINALITY AS w (tenant, key, fingerprint, place)
    LEFT JOIN LATERAL (
      SELECT CASE r.status WHEN 'completed' THEN 'replayed' ELSE r.status END AS answer
      FROM "oncebox".inbox AS r
      JOIN "oncebox".inbox_scope AS t ON t.scope = r.scope
      WHERE r.scope = look_up_copies.scope AND r.tenant = w.tenant AND r.key = w.key
        AND r.status IN ('completed', 'rejected')
        AND r.fingerprint = w.fingerprint
        AND t.mode = 'transaction'
        AND NOT coalesce(r.created_at < statement_timestamp() - make_interval(secs => t.retention_seconds), false)
        AND (pg_current_xact_id_if_assigned() IS NULL OR NOT "oncebox".is_own(r.xmin))
        AND NOT EXISTS (
          SELECT FROM "oncebox".inbox_attempt AS a WHERE a.scope = r.scope AND a.tenant = r.tenant AND a.key = r.key
        )
      OFFSET 0
    ) AS s ON true
    ORDER BY w.place
  );
END $$;

COMMENT ON FUNCTION oncebox.look_up_copies(scope text, tenants text[], keys text[], fingerprints bytea[]) IS 'Which messages are copies that need no claim: for each place replayed or rejected, which are acknowledged, or NULL: claim it. Reads only, and takes no lock. A fingerprint is inbox_fingerprint(payload).';

CREATE FUNCTION oncebox.look_up_ended(scope text, tenant text, key text, fingerprint bytea, OUT answer text, OUT outcome bytea, OUT is_expired boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  stored record;
BEGIN
  SELECT i.status, i.fingerprint, i.outcome,
         coalesce(i.created_at < clock_timestamp() - make_interval(secs => s.retention_seconds), false) AS is_expired
  INTO stored
  FROM "oncebox".inbox AS i
  JOIN "oncebox".inbox_scope AS s ON s.scope = i.scope
  WHERE i.scope = look_up_ended.scope AND i.tenant = look_up_ended.tenant AND i.key = look_up_ended.key;
  is_expired := coalesce(stored.is_expired, false);
  IF stored.status IS NULL OR is_expired THEN
    RETURN;
  END IF;
  outcome := stored.outcome;
  answer := CASE
    WHEN stored.fingerprint NOT IN ('', look_up_ended.fingerprint) THEN 'mismatch'
    WHEN stored.status = 'completed' THEN 'replayed'
    ELSE stored.status
  END;
  IF answer = 'dead' THEN
    PERFORM
    FROM "oncebox".inbox AS i
    WHERE i.scope = look_up_ended.scope AND i.tenant = look_up_ended.tenant AND i.key = look_up_ended.key AND i.status = 'dead'
    FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
      answer := 'in_flight';
    END IF;
  END IF;
END $$;

CREATE FUNCTION oncebox.look_up_key(scope text, tenant text, key text, fingerprint bytea, lock bigint, OUT answer text, OUT outcome bytea) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  registered record;
  stored record;
BEGIN
  SELECT s.mode, s.retention_seconds INTO registered FROM "oncebox".inbox_scope AS s WHERE s.scope = look_up_key.scope;
  IF registered.mode IS DISTINCT FROM 'transaction' THEN
    PERFORM "oncebox".register_scope(look_up_key.scope);
    RETURN;
  END IF;
  -- The trigger of 0027_edit.sql has kept it from being claimed.
  IF strpos(look_up_key.key, ':oncebox-edit-') > 0 THEN
    SELECT CASE e.status WHEN 'completed' THEN 'replayed' ELSE e.status END, e.outcome
    INTO answer, outcome
    FROM "oncebox".ended_before_edit(look_up_key.scope, look_up_key.tenant, look_up_key.key) AS e;
    IF answer IS NOT NULL THEN
      RETURN;
    END IF;
  END IF;
  SELECT i.status, i.fingerprint, i.outcome, "oncebox".is_own(i.xmin) AS is_own,
         coalesce(i.created_at < statement_timestamp() - make_interval(secs => registered.retention_seconds), false) AS is_expired
  INTO stored
  FROM "oncebox".inbox AS i
  WHERE i.scope = look_up_key.scope AND i.tenant = look_up_key.tenant AND i.key = look_up_key.key;
  IF NOT FOUND THEN
    -- With the lock it can be claimed: its row went, or the scope came, a moment ago.
    answer := CASE WHEN NOT pg_try_advisory_xact_lock(look_up_key.lock) THEN 'in_flight' END;
  ELSIF stored.is_own AND stored.fingerprint = '' THEN
    answer := 'in_flight'; -- this transaction has claimed an edit of it
  ELSIF stored.is_own THEN
    RAISE EXCEPTION 'key "%" of scope "%" is claimed by this transaction already', look_up_key.key, look_up_key.scope
      USING ERRCODE = 'OB010', HINT = 'Claim a key once in a transaction. To give its message up, roll the transaction back first.';
  ELSIF stored.is_expired THEN
    DELETE FROM "oncebox".inbox AS i
    WHERE i.scope = look_up_key.scope AND i.tenant = look_up_key.tenant AND i.key = look_up_key.key
      AND i.created_at < statement_timestamp() - make_interval(secs => registered.retention_seconds)
      AND pg_try_advisory_xact_lock(look_up_key.lock);
  ELSIF stored.fingerprint NOT IN ('', look_up_key.fingerprint) THEN
    answer := 'mismatch';
  ELSE
    answer := CASE stored.status WHEN 'completed' THEN 'replayed' ELSE stored.status END;
    outcome := stored.outcome;
  END IF;
  IF stored.status = 'dead' AND NOT stored.is_expired THEN
    PERFORM
    FROM "oncebox".inbox AS i
    WHERE i.scope = look_up_key.scope AND i.tenant = look_up_key.tenant AND i.key = look_up_key.key AND i.status = 'dead'
    FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
      answer := 'in_flight';
    END IF;
  END IF;
END $$;

CREATE FUNCTION oncebox.look_up_leased(scope text, tenant text, key text, fingerprint bytea) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  claimed bytea;
  answer text;
BEGIN
  IF NOT EXISTS (SELECT FROM "oncebox".inbox_scope AS s WHERE s.scope = look_up_leased.scope AND s.mode = 'lease') THEN
    RETURN NULL;
  END IF;
  SELECT c.fingerprint INTO claimed
  FROM "oncebox".inbox_claim AS c
  WHERE c.scope = look_up_leased.scope AND c.tenant = look_up_leased.tenant AND c.key = look_up_leased.key;
  SELECT l.answer INTO answer FROM "oncebox".look_up_ended(look_up_leased.scope, look_up_leased.tenant, look_up_leased.key, look_up_leased.fingerprint) AS l;
  answer := CASE WHEN answer IS NULL AND claimed <> look_up_leased.fingerprint THEN 'mismatch' ELSE answer END;
  IF answer IS NULL THEN
    RAISE EXCEPTION 'key "%" of scope "%" has not ended, and is claimed under a lease', look_up_leased.key, look_up_leased.scope
      USING ERRCODE = 'OB010', HINT = 'Claim it with claim_leased(), and give it up with bury_leased().';
  END IF;
  RETURN answer;
END $$;

CREATE FUNCTION oncebox.loss_event() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  PERFORM "oncebox".send_event(
    'loss',
    NULL,
    jsonb_build_object('stream', NEW.stream, 'lane', NEW.lane, 'kind', NEW.kind,
                       'stored_sequence', NEW.sequence, 'acknowledged_sequence', NEW.lost_sequence)
  );
  RETURN NULL;
END $$;

CREATE TABLE oncebox.parked (
    lane smallint NOT NULL,
    id bigint NOT NULL,
    turn bigint NOT NULL,
    ordering_key text COLLATE pg_catalog."C",
    attempts integer NOT NULL,
    next_attempt_at timestamp with time zone,
    dead_at timestamp with time zone,
    error text NOT NULL,
    parked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    replay integer DEFAULT 0 NOT NULL,
    cause text,
    waits_for text COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL,
    headers jsonb NOT NULL,
    payload bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT parked_attempts CHECK ((attempts >= 0)),
    CONSTRAINT parked_error CHECK ((octet_length(error) <= 1000)),
    CONSTRAINT parked_replay CHECK ((replay >= 0)),
    CONSTRAINT parked_state CHECK (((dead_at IS NULL) OR (next_attempt_at IS NULL)))
);

COMMENT ON TABLE oncebox.parked IS 'Messages set aside: next_attempt_at set = looked at again then, and sent if it is the first of its ordering key; dead_at set = dead; neither = waits for others of its ordering key.';

COMMENT ON COLUMN oncebox.parked.turn IS 'That of the segment of the log that holds the message too, until it is emptied.';

COMMENT ON COLUMN oncebox.parked.replay IS '0 for a message that was never stored; N for its replay, sent with Nats-Msg-Id outbox/digest/rN/key.';

COMMENT ON COLUMN oncebox.parked.cause IS 'The cause of the error, in a word that does not change, such as no-stream; behind = waits for others of its ordering key, replay = to be replayed.';

COMMENT ON COLUMN oncebox.parked.waits_for IS 'The obstacle that refuses the message with others: stream NAME, subject NAME, or pause KIND VALUE. A few of them have the next due times; all others have one that is hours away, and are tried as soon as one of those is stored.';

CREATE FUNCTION oncebox.make_due(lane smallint, ids bigint[]) RETURNS SETOF oncebox.parked
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  UPDATE "oncebox".parked AS p
  SET
    attempts = 0,
    dead_at = NULL,
    next_attempt_at = CASE WHEN d.place = 1 OR d.ordering_key IS NULL THEN clock_timestamp() END
  FROM (
    SELECT q.lane, q.id, q.ordering_key, row_number() OVER (PARTITION BY q.ordering_key ORDER BY q.id) AS place
    FROM "oncebox".parked AS q
    WHERE q.lane = $1 AND q.id = ANY ($2) AND q.dead_at IS NOT NULL
  ) AS d
  WHERE p.lane = d.lane AND p.id = d.id
  RETURNING p.*
$_$;

CREATE FUNCTION oncebox.media_type(content_type text, OUT kind text, OUT boundary text) RETURNS record
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  part text;
  name text;
  value text;
BEGIN
  IF content_type ~ '[^\u0009\u0020-\u007e]' THEN
    content_type := '';
  END IF;
  kind := lower(btrim(split_part(content_type, ';', 1), E' \t'));
  FOREACH part IN ARRAY (string_to_array(content_type, ';'))[2:] LOOP
    part := btrim(part, E' \t');
    CONTINUE WHEN part = '';
    name := lower(btrim(split_part(part, '=', 1), E' \t'));
    value := btrim(btrim(substr(part, length(split_part(part, '=', 1)) + 2), E' \t'), '"');
    IF name = 'boundary' AND kind LIKE 'multipart/%' AND length(value) BETWEEN 1 AND 70 THEN
      boundary := value;
    ELSIF name <> 'charset' OR lower(value) <> 'utf-8' THEN
      kind := concat(kind, ';', name, '=', lower(value));
    END IF;
  END LOOP;
END $$;

COMMENT ON FUNCTION oncebox.media_type(content_type text, OUT kind text, OUT boundary text) IS 'A part of request_fingerprint(): a content type as it counts there.';

CREATE FUNCTION oncebox.message_obstacle(k oncebox.kept, command text) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  m "oncebox".parked := jsonb_populate_record(NULL::"oncebox".parked, k.columns);
  looked bigint;
  passed bigint;
BEGIN
  IF k.origin = 'edited' THEN
    RETURN (SELECT 'the edited message was sent, tried or given up since' WHERE NOT EXISTS (
      SELECT
      FROM "oncebox".parked AS p
      WHERE p.lane = k.lane AND p.id = k.id AND p.replay = 0 AND p.attempts = 0 AND p.key = k.columns ->> 'edited'
    ));
  END IF;
  IF EXISTS (SELECT FROM "oncebox".parked AS p WHERE p.lane = k.lane AND p.id = k.id) THEN
    RETURN 'it is set aside again';
  END IF;
  IF NOT EXISTS (SELECT FROM "oncebox".discarded AS d WHERE d.lane = k.lane AND d.id = k.id) THEN
    RETURN 'the log has forgotten that it was discarded, and the messages after it';
  END IF;
  IF m.ordering_key IS NULL
     OR m.dead_at IS NOT NULL AND NOT coalesce((SELECT bool_or(r.dead_blocks) FROM "oncebox".relay AS r), true) THEN
    RETURN NULL;
  END IF;
  IF k.follower IS NOT NULL
     AND NOT EXISTS (SELECT FROM "oncebox".parked AS p WHERE p.lane = k.lane AND p.id = k.follower AND p.replay = 0)
     AND NOT EXISTS (
       SELECT
       FROM "oncebox".kept AS other
       JOIN "oncebox".audit AS a ON a.id = other.audit
       WHERE other.lane = k.lane AND other.id = k.follower AND a.command = message_obstacle.command
     ) THEN
    RETURN format('the next message of its ordering key, id %s, waited behind it, and has been sent or given up since', k.follower);
  END IF;
  IF k.follower IS NOT NULL THEN
    RETURN NULL;
  END IF;
  WITH later AS MATERIALIZED (
    SELECT l.id, l.ordering_key, l.xact
    FROM "oncebox".message AS l
    WHERE l.lane = k.lane AND l.id > k.lane_floor
    ORDER BY l.id
    LIMIT 1000001
  )
  SELECT count(*), min(l.id) FILTER (
    WHERE l.ordering_key = m.ordering_key
      AND l.id > k.id
      AND (l.id <= c.floor OR l.id <= c.high AND c.reset_until IS NULL AND pg_visible_in_snapshot(l.xact, c.snap))
      AND NOT EXISTS (SELECT FROM "oncebox".parked AS p WHERE p.lane = k.lane AND p.id = l.id AND p.replay = 0)
      AND NOT EXISTS (SELECT FROM "oncebox".discarded AS d WHERE d.lane = k.lane AND d.id = l.id)
  ) INTO looked, passed
  FROM later AS l
  JOIN "oncebox".lane_cursor AS c ON c.lane = k.lane;
  RETURN CASE
    WHEN passed IS NOT NULL THEN format('a later message of its ordering key, id %s, was sent since', passed)
    WHEN looked > 1000000 THEN 'more than 1,000,000 messages of its lane came since: it is not known whether one of its ordering key was sent'
  END;
END $$;

CREATE FUNCTION oncebox.move_delayed(messages integer, bytes bigint, after_time timestamp with time zone, after_id bigint, OUT moved bigint, OUT looked_at bigint, OUT last_time timestamp with time zone, OUT last_id bigint, OUT next_seconds double precision) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  due_until timestamptz := clock_timestamp();
  ready record;
BEGIN
  PERFORM FROM "oncebox".delayed_mover FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  -- A relay's session may leave its commits to a later flush. Nothing that it publishes then may be
  -- undone.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  WITH locked AS MATERIALIZED (
    SELECT d.id, d.key, d.subject, d.ordering_key, d.headers, d.payload, d.not_before
    FROM "oncebox".delayed AS d
    WHERE d.not_before <= due_until AND (d.not_before, d.id) > (move_delayed.after_time, move_delayed.after_id)
    ORDER BY d.not_before, d.id
    LIMIT move_delayed.messages
    FOR UPDATE SKIP LOCKED
  ),
  due AS MATERIALIZED (
    SELECT l.*
    FROM (
      SELECT k.*, sum(octet_length(k.payload)) OVER (ORDER BY k.not_before, k.id) - octet_length(k.payload) AS bytes_before
      FROM locked AS k
    ) AS l
    WHERE l.bytes_before < move_delayed.bytes
  ),
  -- Of each ordering key the first message that is not ours to move: the later ones must wait.
  held AS MATERIALIZED (
    SELECT o.ordering_key, f.not_before, f.id
    FROM (
      SELECT d.ordering_key, array_agg(d.id) AS ids
      FROM due AS d
      WHERE d.ordering_key IS NOT NULL
      GROUP BY d.ordering_key
    ) AS o
    CROSS JOIN LATERAL (
      SELECT e.not_before, e.id
      FROM "oncebox".delayed AS e
      WHERE e.ordering_key = o.ordering_key AND e.id <> ALL (o.ids)
      ORDER BY e.not_before, e.id
      LIMIT 1
    ) AS f
  ),
  ready AS MATERIALIZED (
    SELECT d.*, row_number() OVER (ORDER BY d.not_before, d.id) AS n
    FROM due AS d
    LEFT JOIN held AS h ON h.ordering_key = d.ordering_key
    WHERE h.id IS NULL OR (d.not_before, d.id) < (h.not_before, h.id)
  )
  SELECT
    array_agg(r.id ORDER BY r.n) AS ids,
    array_agg("oncebox".lane_of(coalesce(r.ordering_key, r.key)) ORDER BY r.n) AS lanes,
    array_agg(r.key ORDER BY r.n) AS keys,
    array_agg(r.subject ORDER BY r.n) AS subjects,
    array_agg(r.ordering_key ORDER BY r.n) AS ordering_keys,
    array_agg(r.headers ORDER BY r.n) AS headers,
    array_agg(r.payload ORDER BY r.n) AS payloads,
    (SELECT count(*) FROM due) AS looked_at,
    (SELECT max(d.not_before) FROM due AS d) AS last_time,
    (SELECT d.id FROM due AS d ORDER BY d.not_before DESC, d.id DESC LIMIT 1) AS last_id
  INTO ready
  FROM ready AS r;
  SELECT ready.looked_at, ready.last_time, ready.last_id INTO looked_at, last_time, last_id;
  moved := 0;
  IF ready.ids IS NOT NULL THEN
    DELETE FROM "oncebox".delayed AS d WHERE d.id = ANY (ready.ids);
    PERFORM "oncebox".delete_placeholders(ready.ids);
    -- Ids are drawn in that order, and when every placeholder is gone.
    moved := cardinality("oncebox".append(
      ARRAY(SELECT nextval('"oncebox".message_id_seq') FROM generate_series(1, cardinality(ready.ids))), ready.lanes,
      ready.keys, ready.subjects, ready.ordering_keys, ready.headers, ready.payloads, true
    ));
  END IF;
  SELECT extract(epoch FROM d.not_before) - extract(epoch FROM clock_timestamp()) INTO next_seconds
  FROM "oncebox".delayed AS d
  WHERE d.not_before > due_until
  ORDER BY d.not_before
  LIMIT 1;
  IF moved > 0 AND (SELECT s.last_value FROM "oncebox".relay_asleep AS s) = 1 THEN
    PERFORM "oncebox".wake_relay();
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.move_delayed(messages integer, bytes bigint, after_time timestamp with time zone, after_id bigint, OUT moved bigint, OUT looked_at bigint, OUT last_time timestamp with time zone, OUT last_id bigint, OUT next_seconds double precision) IS 'For relays: moves delayed messages that are due into the log, some at a time.';

CREATE FUNCTION oncebox.next_in_line(scope text, stream text, after bigint, OUT id bigint, OUT since bigint, OUT subject text, OUT headers jsonb, OUT payload bytea, OUT stream_sequence bigint, OUT stored_at timestamp with time zone) RETURNS SETOF record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  RETURN QUERY
  SELECT b.id, (extract(epoch FROM b.created_at) * 1000000)::bigint, b.subject, b.headers, b.payload, b.stream_sequence, b.stored_at
  FROM "oncebox".inbox_behind AS b
  WHERE b.scope = next_in_line.scope AND b.stream = next_in_line.stream AND b.is_due AND b.id > next_in_line.after
  ORDER BY b.id
  LIMIT 1;
  IF NOT FOUND AND (
    EXISTS (SELECT FROM "oncebox".dead_letter AS d WHERE d.scope = next_in_line.scope AND d.ordering_key IS NOT NULL)
    OR EXISTS (SELECT FROM "oncebox".inbox_behind AS b WHERE b.scope = next_in_line.scope)
  ) THEN
    RETURN NEXT;
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.next_in_line(scope text, stream text, after bigint, OUT id bigint, OUT since bigint, OUT subject text, OUT headers jsonb, OUT payload bytea, OUT stream_sequence bigint, OUT stored_at timestamp with time zone) IS 'The next message of a line to run, above the id after: run it as one that was delivered before, without wait_in_line(), then call end_in_line().';

CREATE FUNCTION oncebox.note_canary_fault(canary bigint, fault text) RETURNS boolean
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH known AS (
    SELECT k.id, coalesce(k.fault_since, clock_timestamp()) AS since, k.fault_since IS NULL AS is_new
    FROM "oncebox".canary AS k
    WHERE k.id = $1 AND k.state = 'running'
    FOR UPDATE
  ),
  noted AS (
    UPDATE "oncebox".canary AS k
    SET fault = left($2, 1000), fault_since = o.since
    FROM known AS o
    WHERE k.id = o.id
  )
  SELECT o.is_new FROM known AS o
$_$;

COMMENT ON FUNCTION oncebox.note_canary_fault(canary bigint, fault text) IS 'For relays: why the next row of a canary could not be retried. After the time of a verdict the canary stops for it. Whether the fault is new.';

CREATE FUNCTION oncebox.note_loss(wanted_lane smallint, wanted_stream text, seen bigint, kind text, lost_sequence bigint, proven bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  stands record;
  proof record;
BEGIN
  PERFORM FROM "oncebox".maintenance FOR UPDATE;
  PERFORM FROM "oncebox".lane AS l WHERE l.lane = wanted_lane FOR UPDATE;
  SELECT c.* INTO STRICT stands FROM "oncebox".lane_cursor AS c WHERE c.lane = wanted_lane;
  SELECT r.* INTO proof
  FROM "oncebox".receipt AS r
  WHERE r.lane = wanted_lane AND r.stream = wanted_stream AND r.number = proven;
  IF (proven IS NOT NULL AND proof IS NULL) OR stands.reset_until IS NOT NULL OR EXISTS (
    SELECT FROM "oncebox".loss AS l
    WHERE l.lane = wanted_lane AND l.stream = wanted_stream AND l.number > seen
  ) THEN
    RETURN false;
  END IF;
  INSERT INTO "oncebox".cursor (
    lane, number, floor, high, snap, target, after, reset_until, system_identifier, acknowledged
  )
  VALUES (
    wanted_lane, stands.number + 1, stands.floor, stands.high, stands.snap, stands.target, stands.after, NULL,
    stands.system_identifier,
    CASE WHEN proof.message_id IS NULL THEN stands.acknowledged - wanted_stream
      ELSE stands.acknowledged || jsonb_build_object(wanted_stream, jsonb_build_array(proof.sequence, proof.message_id))
    END
  );
  DELETE FROM "oncebox".cursor AS c WHERE c.lane = wanted_lane AND c.number = stands.number;
  DELETE FROM "oncebox".receipt AS r
  WHERE r.lane = wanted_lane AND r.stream = wanted_stream AND r.number > coalesce(proven, -1);
  INSERT INTO "oncebox".loss (lane, stream, number, kind, sequence, lost_sequence, receipt_number, floor, high, snap)
  VALUES (
    wanted_lane, wanted_stream, stands.number + 1, note_loss.kind, coalesce(proof.sequence, 0),
    note_loss.lost_sequence, proven, coalesce(proof.floor, stands.floor), coalesce(proof.high, stands.floor),
    coalesce(proof.snap, pg_current_snapshot())
  );
  RETURN true;
END $$;

CREATE FUNCTION oncebox.note_turn() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  newest bigint := (SELECT greatest(max(s.turn), 0) FROM "oncebox".segment AS s);
  this_turn bigint := pg_sequence_last_value('"oncebox".turn');
BEGIN
  IF this_turn IS NULL OR this_turn < newest THEN
    this_turn := setval('"oncebox".turn', newest);
  END IF;
  UPDATE "oncebox".segment AS s
  SET turn = this_turn, is_live = true, is_empty = false, began_at = clock_timestamp(), drained_at = NULL, tried_at = NULL,
    tried_xact = NULL, looked_lane = NULL, looked_id = NULL
  WHERE s.number = this_turn % 8 AND s.turn <> this_turn;
  RETURN FOUND;
END $$;

CREATE FUNCTION oncebox.note_unhandled(expectation bigint, first_xact xid8, end_xact xid8, lanes smallint[], ids bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
  e "oncebox".expectation;
  messages bigint;
  oldest text;
BEGIN
  SELECT x.* INTO e FROM "oncebox".expectation AS x WHERE x.id = $1 FOR UPDATE;
  IF NOT FOUND OR first_xact IS NOT NULL
    AND first_xact IS DISTINCT FROM (SELECT min(m.xact) FROM "oncebox".expectation_mark AS m WHERE m.expectation = $1) THEN
    RETURN;
  END IF;
  DELETE FROM "oncebox".unhandled AS u
  WHERE u.expectation = $1 AND NOT EXISTS (SELECT FROM unnest($4, $5) AS n (lane, id) WHERE n.lane = u.lane AND n.id = u.id);
  INSERT INTO "oncebox".unhandled (expectation, lane, id, key, subject, created_at)
  SELECT $1, m.lane, m.id, m.key, m.subject, m.created_at
  FROM unnest($4, $5) AS n (lane, id)
  JOIN "oncebox".log AS m ON m.lane = n.lane AND m.id = n.id
  WHERE NOT EXISTS (SELECT FROM "oncebox".unhandled AS u WHERE u.expectation = $1 AND u.lane = n.lane AND u.id = n.id)
  ORDER BY m.created_at
  LIMIT "oncebox".unhandled_max() - (SELECT count(*) FROM "oncebox".unhandled AS u WHERE u.expectation = $1);
  IF end_xact IS NOT NULL THEN
    INSERT INTO "oncebox".expectation_mark (expectation, xact, system_identifier, marked_at)
    SELECT $1, end_xact, m.system_identifier, m.marked_at
    FROM "oncebox".expectation_mark AS m
    WHERE m.expectation = $1 AND m.xact = first_xact
    ON CONFLICT ON CONSTRAINT expectation_mark_pkey DO NOTHING;
    DELETE FROM "oncebox".expectation_mark AS m WHERE m.expectation = $1 AND m.xact < end_xact;
  END IF;
  UPDATE "oncebox".expectation AS x
  SET (unhandled, oldest_at, oldest_key) = (
    SELECT count(*), min(u.created_at), (array_agg(u.key ORDER BY u.created_at, u.id))[1]
    FROM "oncebox".unhandled AS u
    WHERE u.expectation = $1
  )
  WHERE x.id = $1
  RETURNING x.unhandled, x.oldest_key INTO messages, oldest;
  IF e.unhandled = 0 AND messages > 0 THEN
    PERFORM "oncebox".send_event('unhandled', NULL, jsonb_build_object(
      'subject', e.subject, 'inbox', e.scope, 'within_seconds', e.within_seconds, 'messages', messages, 'key', oldest));
  END IF;
END $_$;

COMMENT ON FUNCTION oncebox.note_unhandled(expectation bigint, first_xact xid8, end_xact xid8, lanes smallint[], ids bigint[]) IS 'For relays: notes which messages are not in their inbox in time.';

CREATE TABLE oncebox.segment (
    number smallint NOT NULL,
    turn bigint NOT NULL,
    is_live boolean NOT NULL,
    is_empty boolean NOT NULL,
    began_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    drained_at timestamp with time zone,
    tried_at timestamp with time zone,
    tried_xact xid8,
    looked_lane smallint,
    looked_id bigint,
    CONSTRAINT segment_number CHECK (((number >= 0) AND (number <= 7)))
)
WITH (fillfactor='50');

COMMENT ON TABLE oncebox.segment IS 'The segments of the log. Private: written by the functions that turn the ring.';

COMMENT ON COLUMN oncebox.segment.turn IS 'The turn in which messages went into it; below 0 = none yet.';

COMMENT ON COLUMN oncebox.segment.is_live IS 'A message in it may be due. While one segment alone is live, relays read nothing else.';

COMMENT ON COLUMN oncebox.segment.drained_at IS 'Since when no message in it is due.';

COMMENT ON COLUMN oncebox.segment.tried_at IS 'When a relay last asked for the lock that ends its turn.';

COMMENT ON COLUMN oncebox.segment.tried_xact IS 'The transaction that did: an older one that holds the table at the next try is a long one.';

COMMENT ON COLUMN oncebox.segment.looked_lane IS 'With looked_id: up to where find_unsent() has looked for messages of a restored database; 32767 = everywhere.';

CREATE FUNCTION oncebox.old_segments(retention_seconds double precision) RETURNS SETOF oncebox.segment
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT s.*
  FROM "oncebox".segment AS s
  WHERE NOT s.is_live
    AND NOT s.is_empty
    AND s.number NOT IN (pg_sequence_last_value('"oncebox".turn') % 8, (pg_sequence_last_value('"oncebox".turn') + 7) % 8)
    AND s.drained_at <= clock_timestamp() - make_interval(secs => least(greatest($1, 0), "oncebox".retention_max()))
  ORDER BY s.turn
$_$;

CREATE FUNCTION oncebox.parked_event() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  PERFORM "oncebox".send_event(
    CASE WHEN NEW.dead_at IS NULL THEN 'parked' ELSE 'dead' END,
    NEW.subject,
    jsonb_build_object('key', NEW.key, 'subject', NEW.subject, 'ordering_key', NEW.ordering_key,
                       'attempts', NEW.attempts, 'cause', NEW.cause, 'reason', NEW.error)
  );
  RETURN NULL;
END $$;

CREATE FUNCTION oncebox.part_key(key text, part bigint) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF part NOT BETWEEN 0 AND 4294967295 THEN
    RAISE EXCEPTION 'part % is not between 0 and 4294967295', part USING ERRCODE = 'OB002';
  END IF;
  PERFORM "oncebox".check_key(key || ':#' || part);
  RETURN key || ':#' || part;
END $$;

COMMENT ON FUNCTION oncebox.part_key(key text, part bigint) IS 'The key of one of several messages of a step: KEY:#PART, from 0.';

CREATE FUNCTION oncebox.pause_delivery(kind text, value text, rate double precision, subjects text[], ordering_key text, by text, note text, ends_at timestamp with time zone, seconds double precision) RETURNS TABLE(pause_ends_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
  IF $9 NOT BETWEEN 0 AND "oncebox".retention_max() OR isfinite($8) AND $8 >= '10000-01-01 00:00+00' THEN
    RAISE EXCEPTION 'a pause cannot last until %', coalesce($9 || ' seconds from now', $8::text)
      USING ERRCODE = 'OB011', HINT = 'It lasts 0 seconds to 100 years, or ends before the year 10000. Leave both out for one without an end.';
  END IF;
  IF $1 IS NULL OR $2 IS NULL OR ($1 = 'ordering key') IS DISTINCT FROM ($5 IS NOT NULL) OR ($4 IS NULL) IS DISTINCT FROM ($5 IS NOT NULL) THEN
    RAISE EXCEPTION 'a pause of kind % names %', coalesce($1, 'null'), CASE WHEN $1 = 'ordering key' THEN 'an ordering key and no subjects' ELSE 'subjects and no ordering key' END
      USING ERRCODE = 'OB011', HINT = 'For example pause_delivery(''subject'', ''orders.>'', NULL, ''{orders.>}'', NULL, ..).';
  END IF;
  IF $3 <= 0 OR $3 >= 'infinity' THEN
    RAISE EXCEPTION 'a rate of % messages a second is not above 0 and finite', $3
      USING ERRCODE = 'OB011', HINT = 'Leave it out for a pause.';
  END IF;
  -- One after the other: two of the same messages would insert one row twice.
  PERFORM FROM "oncebox".outbox FOR NO KEY UPDATE;
  DELETE FROM "oncebox".pause
  WHERE pause.kind = $1 AND pause.value = $2 OR pause.ends_at <= clock_timestamp();
  RETURN QUERY
  WITH paused AS (
    INSERT INTO "oncebox".pause (kind, value, rate, subjects, ordering_key, paused_by, reason, ends_at)
    SELECT $1, $2, $3, $4, $5, $6, $7, e.ends_at
    FROM (
      SELECT coalesce(clock_timestamp() + make_interval(secs => $9::double precision), $8::timestamptz, 'infinity') AS ends_at
    ) AS e
    WHERE e.ends_at > clock_timestamp()
    RETURNING pause.kind, pause.value, pause.rate, pause.ends_at
  ),
  recorded AS (
    INSERT INTO "oncebox".audit (operator, note, action, reason)
    SELECT $6, $7, CASE WHEN p.rate IS NULL THEN 'pause' ELSE 'throttle' END, concat_ws(' ', p.kind, p.value)
    FROM paused AS p
  )
  SELECT nullif(p.ends_at, 'infinity') AS ends_at
  FROM paused AS p;
END $_$;

COMMENT ON FUNCTION oncebox.pause_delivery(kind text, value text, rate double precision, subjects text[], ordering_key text, by text, note text, ends_at timestamp with time zone, seconds double precision) IS 'For operators: pauses messages, or throttles them to a rate, until a time or for some seconds; NULL is without an end. Returns when it ends; no row when that is past.';

CREATE FUNCTION oncebox.pause_event() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  of record := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
  PERFORM "oncebox".send_event(
    'pause',
    NULL,
    jsonb_build_object(
      'action', CASE WHEN TG_OP = 'DELETE' THEN 'resumed' WHEN of.rate IS NULL THEN 'paused' ELSE 'throttled' END,
      'kind', of.kind, 'value', of.value, 'rate', of.rate, 'reason', of.reason, 'by', of.paused_by,
      'until', nullif(of.ends_at, 'infinity')
    )
  );
  RETURN NULL;
END $$;

CREATE FUNCTION oncebox.pause_left(scope text, key text, tenant text DEFAULT ''::text, stream text DEFAULT NULL::text, stream_sequence bigint DEFAULT NULL::bigint, stored_at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS double precision
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  copy text;
  due_at timestamptz;
BEGIN
  PERFORM "oncebox".check_stored_at($6);
  copy := "oncebox".inbox_copy($4, $5, $6);
  SELECT max(p.due_at) INTO due_at
  FROM (
    SELECT a.due_at
    FROM "oncebox".inbox_attempt AS a
    WHERE a.scope = $1 AND a.tenant = $3 AND a.key = $2 AND a.message = copy
    UNION ALL
    SELECT z.due_at
    FROM "oncebox".inbox_snooze AS z
    WHERE z.scope = $1 AND z.tenant = $3 AND z.key = $2 AND z.message = copy
  ) AS p;
  RETURN least(coalesce(greatest(extract(epoch FROM due_at) - extract(epoch FROM clock_timestamp()), 0), 0), 86400);
END $_$;

COMMENT ON FUNCTION oncebox.pause_left(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone) IS 'How many seconds of a message''s pause are left, a day at most: its last run failed, or was snoozed.';

CREATE FUNCTION oncebox.payload_digest(headers jsonb, payload bytea) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT encode(coalesce((
      SELECT decode(translate(substr(h.value, 9), '-_', '+/'), 'base64')
      FROM jsonb_each_text($1) AS h (name, value)
      WHERE $2 = '' AND lower(h.name) = 'oncebox-object-digest' AND h.value ~ '^SHA-256=[A-Za-z0-9_-]{43}=$'
      LIMIT 1
    ), sha256($2)), 'hex')
$_$;

CREATE FUNCTION oncebox.prune_inbox(first_block bigint, end_block bigint, only_count boolean, by text, note text, OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  SELECT s.* INTO keys, dead_letters, claims, unknown_effects
  FROM "oncebox".sweep_inbox(first_block, end_block, only_count) AS s;
  INSERT INTO "oncebox".audit (operator, note, action, messages, reason)
  SELECT prune_inbox.by, prune_inbox.note, 'prune', keys + dead_letters + claims,
    format('beyond the retentions of inboxes: keys %s, dead letters %s, claims %s, effects of unknown outcome %s',
           keys, dead_letters, claims, unknown_effects)
  WHERE NOT only_count AND keys + dead_letters + claims > 0;
END $$;

COMMENT ON FUNCTION oncebox.prune_inbox(first_block bigint, end_block bigint, only_count boolean, by text, note text, OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint) IS 'For operators: sweep_inbox() by hand, or only a count.';

CREATE FUNCTION oncebox.prune_segment(retention_seconds double precision, by text, note text, why text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  messages bigint;
BEGIN
  PERFORM FROM "oncebox".maintenance FOR UPDATE;
  SELECT f.unsent INTO messages FROM "oncebox".find_unsent(retention_seconds, 20000) AS f;
  IF FOUND THEN
    INSERT INTO "oncebox".audit (operator, note, action, messages, reason)
    SELECT prune_segment.by, prune_segment.note, 'resend', messages, 'written below the floor of its lane after a restore'
    WHERE messages > 0;
    RETURN 0;
  END IF;
  SELECT e.messages INTO messages FROM "oncebox".empty_segment(retention_seconds) AS e;
  IF NOT FOUND THEN
    RETURN CASE WHEN "oncebox".forget_emptied(10000) THEN 0 END;
  END IF;
  INSERT INTO "oncebox".audit (operator, note, action, messages, reason)
  SELECT prune_segment.by, prune_segment.note, 'prune', messages, prune_segment.why
  WHERE messages > 0;
  RETURN messages;
END $$;

COMMENT ON FUNCTION oncebox.prune_segment(retention_seconds double precision, by text, note text, why text) IS 'For operators: a step of retention by hand: find_unsent(), empty_segment() or forget_emptied(), under one audit. Returns about how many messages went; NULL when there is nothing more to do.';

CREATE FUNCTION oncebox.record_dead_letter(scope text, tenant text, key text, subject text, headers jsonb, payload bytea, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, reason text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  INSERT INTO "oncebox".dead_letter
    (scope, tenant, key, subject, headers, payload, stream, stream_sequence, stored_at, deliveries, reason, fingerprint)
  SELECT $1, $2, $3, $4, $5, CASE WHEN s.is_in_store THEN '' ELSE $6 END, $7, $8, $9, $10, $11,
         CASE WHEN s.is_in_store THEN "oncebox".inbox_fingerprint($6) END
  FROM "oncebox".is_in_store($5, $6) AS s (is_in_store)
  ON CONFLICT ON CONSTRAINT dead_letter_once DO NOTHING
$_$;

CREATE FUNCTION oncebox.record_snooze(scope text, tenant text, key text, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, pause interval, longest interval, reason text, OUT snoozes bigint, OUT since timestamp with time zone) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  copy text := "oncebox".inbox_copy(record_snooze.stream, record_snooze.stream_sequence, record_snooze.stored_at);
  due timestamptz := clock_timestamp() + record_snooze.pause;
  tried bigint;
BEGIN
  UPDATE "oncebox".inbox_attempt AS a
  SET failures = a.failures + greatest(a.begun - 2, 0), begun = 0, touched_at = clock_timestamp(), due_at = due
  WHERE a.scope = record_snooze.scope AND a.tenant = record_snooze.tenant AND a.key = record_snooze.key AND a.message = copy
  RETURNING a.failures INTO tried;
  INSERT INTO "oncebox".inbox_snooze AS p (scope, tenant, key, message, delivery, attempts, reason, due_at)
  VALUES (record_snooze.scope, record_snooze.tenant, record_snooze.key, copy, greatest(record_snooze.deliveries, 1), coalesce(tried, 0),
          "oncebox".bounded_reason(record_snooze.reason), due)
  ON CONFLICT ON CONSTRAINT inbox_snooze_pkey DO UPDATE
  SET delivery = excluded.delivery,
      attempts = excluded.attempts,
      reason = excluded.reason,
      due_at = excluded.due_at,
      snoozes = CASE WHEN p.due_at < clock_timestamp() - record_snooze.longest THEN 1 ELSE p.snoozes + 1 END,
      snoozed_at = CASE WHEN p.due_at < clock_timestamp() - record_snooze.longest THEN excluded.snoozed_at ELSE p.snoozed_at END
  RETURNING p.snoozes, p.snoozed_at INTO snoozes, since;
END $$;

COMMENT ON FUNCTION oncebox.record_snooze(scope text, tenant text, key text, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, pause interval, longest interval, reason text, OUT snoozes bigint, OUT since timestamp with time zone) IS 'A part of snooze(), for the crate oncebox-inbox: how often a message was snoozed, and since when. It checks nothing.';

CREATE FUNCTION oncebox.refuse_lone_entry() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF NEW.changed_at = statement_timestamp()
     AND current_setting('transaction_deferrable') = current_setting('default_transaction_deferrable') THEN
    RAISE EXCEPTION 'the barrier is asked in the transaction of the effect, and the call for key "%" was a transaction of its own', NEW.key
      USING ERRCODE = 'OB010', HINT = 'BEGIN, enter_action() or enter_compensation(), the writes of the handler, COMMIT, each sent by itself; or BEGIN DEFERRABLE first if one text holds them all. Where a driver commits each statement by itself, the action would count as done without its effect.';
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION oncebox.refuse_null(no_key boolean, no_subject boolean) RETURNS void
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF no_key THEN
    RAISE EXCEPTION 'key is null' USING ERRCODE = 'OB002';
  ELSIF no_subject THEN
    RAISE EXCEPTION 'subject is null' USING ERRCODE = 'OB003';
  END IF;
  RAISE EXCEPTION 'payload is null; the limit is 0 to 67108864 bytes' USING ERRCODE = 'OB005';
END $$;

CREATE FUNCTION oncebox.refuse_uncommitted(row_xmin xid, what text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF "oncebox".is_own(row_xmin) THEN
    RAISE EXCEPTION '% is not committed: this transaction has done it itself', what
      USING ERRCODE = 'OB010', HINT = 'Each call of leased mode is a transaction of its own: switch autocommit on, or COMMIT behind each call.';
  END IF;
END $$;

CREATE FUNCTION oncebox.refuse_unmarked() RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  RAISE EXCEPTION 'a key is claimed in a transaction that was begun with BEGIN DEFERRABLE, and here is none'
    USING ERRCODE = 'OB010', HINT = CASE WHEN current_setting('default_transaction_deferrable') = 'on'
      THEN 'Set default_transaction_deferrable off for this role: it hides the mark.'
      ELSE 'BEGIN DEFERRABLE (or SET TRANSACTION DEFERRABLE first), claim(), the writes of the handler, settle(), COMMIT. Where a driver commits each statement by itself, a claim would be lost.' END;
END $$;

CREATE FUNCTION oncebox.register_saga(fingerprint text, type text, version integer, graph jsonb, plan jsonb DEFAULT NULL::jsonb, scope text DEFAULT NULL::text, reply_to text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  others record;
  unheard record;
BEGIN
  IF register_saga.plan IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('"oncebox" saga ' || register_saga.type, 0));
    SELECT count(*) AS sagas, count(*) FILTER (WHERE s.scope <> register_saga.scope) AS elsewhere,
      min(s.scope) FILTER (WHERE s.scope <> register_saga.scope) AS scope
    INTO others
    FROM "oncebox".saga AS s
    WHERE s.finished_at IS NULL AND s.type = register_saga.type
      AND (s.version = register_saga.version AND s.fingerprint <> register_saga.fingerprint OR s.scope <> register_saga.scope);
    IF others.elsewhere > 0 THEN
      RAISE EXCEPTION 'saga "%": orchestrator "%" has % of it in flight, and "%" would lead them', register_saga.type,
        others.scope, others.elsewhere, register_saga.scope
        USING ERRCODE = 'OB015', HINT = 'Use its scope, --scope ' || others.scope || ', or wait until these sagas have finished.';
    END IF;
    IF others.sagas > 0 THEN
      RAISE EXCEPTION 'saga "%", version %: another file with this version has % in flight', register_saga.type,
        register_saga.version, others.sagas
        USING ERRCODE = 'OB015', HINT = 'Give the changed file a new version, and run both until the sagas of the old one have finished.';
    END IF;
    SELECT d.reply_to, count(*) AS sagas INTO unheard
    FROM "oncebox".saga_definition AS d
    JOIN "oncebox".saga AS s ON s.type = d.type AND s.fingerprint = d.fingerprint
    WHERE d.scope = register_saga.scope AND d.reply_to <> register_saga.reply_to AND s.finished_at IS NULL
    GROUP BY d.reply_to;
    IF FOUND THEN
      RAISE EXCEPTION 'saga "%", version %: % of its orchestrator in flight have participants that answer on subject "%", and not on "%"',
        register_saga.type, register_saga.version, unheard.sagas, unheard.reply_to, register_saga.reply_to
        USING ERRCODE = 'OB015', HINT = 'Use this subject, --reply-to ' || unheard.reply_to || ', until they have finished: all sagas of an orchestrator share a consumer, which takes one subject.';
    END IF;
    UPDATE "oncebox".saga_definition AS d
    SET plan = NULL
    WHERE d.type = register_saga.type AND d.plan IS NOT NULL AND d.fingerprint <> register_saga.fingerprint
      AND (d.version = register_saga.version OR d.scope <> register_saga.scope);
  END IF;
  INSERT INTO "oncebox".saga_definition AS d (fingerprint, type, version, graph, plan, scope, reply_to)
  VALUES (register_saga.fingerprint, register_saga.type, register_saga.version, register_saga.graph, register_saga.plan,
          CASE WHEN register_saga.plan IS NOT NULL THEN register_saga.scope END,
          CASE WHEN register_saga.plan IS NOT NULL THEN register_saga.reply_to END)
  ON CONFLICT ON CONSTRAINT saga_definition_pkey DO UPDATE
  SET graph = excluded.graph, plan = excluded.plan, scope = excluded.scope, reply_to = excluded.reply_to
  WHERE excluded.plan IS NOT NULL
    AND (d.graph, d.plan, d.scope, d.reply_to) IS DISTINCT FROM (excluded.graph, excluded.plan, excluded.scope, excluded.reply_to);
END $$;

COMMENT ON FUNCTION oncebox.register_saga(fingerprint text, type text, version integer, graph jsonb, plan jsonb, scope text, reply_to text) IS 'For orchestrators: writes a graph down, and for a file the plan by which start_saga() starts its sagas. Error OB015 when sagas are in flight that began with another file under this version, or whose answers go to another subject.';

CREATE FUNCTION oncebox.register_scope(scope text, retention interval DEFAULT NULL::interval, dead_letter_retention interval DEFAULT NULL::interval, kind text DEFAULT 'consumer'::text, mode text DEFAULT 'transaction'::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  keys_seconds double precision := extract(epoch FROM register_scope.retention);
  letters_seconds double precision := extract(epoch FROM coalesce(register_scope.dead_letter_retention, interval '90 days'));
  stored record;
BEGIN
  PERFORM "oncebox".check_inbox_names(register_scope.scope, '');
  IF coalesce(register_scope.kind NOT IN ('consumer', 'http'), true) OR coalesce(register_scope.mode NOT IN ('transaction', 'lease'), true) THEN
    RAISE EXCEPTION 'kind "%" is neither "consumer" nor "http", or mode "%" neither "transaction" nor "lease"', register_scope.kind, register_scope.mode
      USING ERRCODE = 'OB011';
  END IF;
  IF keys_seconds NOT BETWEEN 1 AND "oncebox".retention_max() OR letters_seconds NOT BETWEEN 1 AND "oncebox".retention_max()
     OR register_scope.dead_letter_retention IS NOT NULL AND (keys_seconds IS NULL OR letters_seconds < keys_seconds) THEN
    RAISE EXCEPTION 'retention % and dead_letter_retention % of scope "%" do not fit', register_scope.retention,
      register_scope.dead_letter_retention, register_scope.scope
      USING ERRCODE = 'OB011', HINT = 'Both are 1 second to 100 years. Dead letters are kept as long as keys or longer; keys are kept for ever unless it is said otherwise.';
  END IF;
  letters_seconds := CASE WHEN keys_seconds IS NOT NULL THEN greatest(letters_seconds, keys_seconds) END;
  INSERT INTO "oncebox".inbox_scope AS s (scope, retention_seconds, dead_letter_seconds, kind, mode)
  VALUES (register_scope.scope, keys_seconds, letters_seconds, register_scope.kind, register_scope.mode)
  ON CONFLICT ON CONSTRAINT inbox_scope_pkey DO UPDATE
  SET mode = excluded.mode
  WHERE s.mode IS NULL OR s.mode = excluded.mode
  RETURNING s.retention_seconds, s.dead_letter_seconds, s.kind INTO stored;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'scope "%" claims its keys %', register_scope.scope,
      CASE register_scope.mode WHEN 'lease' THEN 'in the transaction of their handlers' ELSE 'under a lease' END
      USING ERRCODE = 'OB010', HINT = 'Use another scope, or stop its processes and call change_inbox_mode().';
  END IF;
  IF stored IS DISTINCT FROM (keys_seconds, letters_seconds, register_scope.kind) THEN
    RAISE WARNING 'scope "%" keeps its stored settings (retention and dead letters in seconds, kind): %', register_scope.scope, stored
      USING HINT = 'An operator changes them with change_scope().';
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.register_scope(scope text, retention interval, dead_letter_retention interval, kind text, mode text) IS 'Says that a consumer exists, or a route of kind http, and how long it keeps its keys (NULL: for ever) and dead letters (NULL: 90 days, or as long as keys). mode: transaction (claim), or lease (claim_leased).';

CREATE FUNCTION oncebox.release_leased(scope text, key text, owner uuid, epoch bigint, pause interval, reason text, is_unknown boolean DEFAULT false, is_attempt boolean DEFAULT true, tenant text DEFAULT ''::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF release_leased.pause IS NULL OR extract(epoch FROM release_leased.pause) NOT BETWEEN 0 AND "oncebox".retention_max() THEN
    RAISE EXCEPTION 'pause % is not 0 seconds to 100 years', release_leased.pause USING ERRCODE = 'OB011';
  END IF;
  UPDATE "oncebox".inbox_claim AS c
  SET state = CASE WHEN release_leased.is_unknown THEN 'unknown' ELSE 'failed' END,
      reason = "oncebox".bounded_reason(release_leased.reason),
      attempts = c.attempts - CASE WHEN release_leased.is_attempt THEN 0 ELSE 1 END,
      lease_until = clock_timestamp() + release_leased.pause
  WHERE c.scope = release_leased.scope
    AND c.tenant = release_leased.tenant
    AND c.key = release_leased.key
    AND c.owner = release_leased.owner
    AND c.epoch = release_leased.epoch
    AND c.state = 'running';
  RETURN FOUND;
END $$;

COMMENT ON FUNCTION oncebox.release_leased(scope text, key text, owner uuid, epoch bigint, pause interval, reason text, is_unknown boolean, is_attempt boolean, tenant text) IS 'Gives a claim back that did not end: every process may claim the key after the pause. is_unknown: an effect may have happened; is_attempt false: the run does not count. The records of its effects stay. False: the lease is lost.';

CREATE FUNCTION oncebox.render_payload(template jsonb, document jsonb) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  path text[];
  found jsonb;
BEGIN
  IF template ? 'value' THEN
    RETURN template -> 'value';
  ELSIF template ? 'from' THEN
    path := ARRAY(SELECT jsonb_array_elements_text(template -> 'from'));
    found := document #> path;
    IF template ? 'default' THEN
      RETURN coalesce(nullif(found, 'null'), template -> 'default');
    ELSIF found IS NULL THEN
      RAISE EXCEPTION 'there is nothing at /%', array_to_string(path, '/')
        USING ERRCODE = 'OB011', HINT = 'The file of the saga reads it there. Start the saga with this field.';
    END IF;
    RETURN found;
  ELSIF template ? 'array' THEN
    RETURN (SELECT coalesce(jsonb_agg("oncebox".render_payload(e.value, document) ORDER BY e.ordinality), '[]')
            FROM jsonb_array_elements(template -> 'array') WITH ORDINALITY AS e);
  END IF;
  RETURN (SELECT coalesce(jsonb_object_agg(f.key, "oncebox".render_payload(f.value, document)), '{}')
          FROM jsonb_each(template -> 'object') AS f);
END $$;

CREATE FUNCTION oncebox.renew_lease(scope text, key text, owner uuid, epoch bigint, lease interval, tenant text DEFAULT ''::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  PERFORM "oncebox".check_lease(renew_lease.owner, renew_lease.lease);
  UPDATE "oncebox".inbox_claim AS c
  SET lease_until = clock_timestamp() + renew_lease.lease
  WHERE c.scope = renew_lease.scope
    AND c.tenant = renew_lease.tenant
    AND c.key = renew_lease.key
    AND c.owner = renew_lease.owner
    AND c.epoch = renew_lease.epoch
    AND c.state = 'running';
  RETURN FOUND;
END $$;

COMMENT ON FUNCTION oncebox.renew_lease(scope text, key text, owner uuid, epoch bigint, lease interval, tenant text) IS 'Starts the time of a lease again; false: another owner has the key, or it has ended. Then call and write nothing more for this message. Call it every third of the lease.';

CREATE FUNCTION oncebox.repair_ids(OUT stood_at bigint, OUT raised_to bigint, OUT set_aside bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '500ms'
    AS $$
BEGIN
  PERFORM FROM "oncebox".maintenance FOR UPDATE;
  PERFORM FROM "oncebox".lane AS l ORDER BY l.lane FOR UPDATE;
  -- Changes nothing, but takes the lock.
  ALTER SEQUENCE "oncebox".message_id_seq CACHE 1;
  SELECT s.stood_at, s.needed INTO stood_at, raised_to FROM "oncebox".message_ids AS s;
  IF stood_at >= raised_to THEN
    stood_at := NULL;
    raised_to := NULL;
    RETURN;
  END IF;
  -- Restored rows were written by a later transaction than their xact, or an earlier one; those of
  -- here by their xact, or a part of it, which has a later id. So more than those of here may be
  -- found: they are sent once more.
  INSERT INTO "oncebox".parked (
    lane, id, turn, ordering_key, attempts, next_attempt_at, error, key, subject, headers, payload, created_at
  )
  SELECT
    m.lane,
    m.id,
    "oncebox".turn_of(m.tableoid),
    m.ordering_key,
    0,
    CASE WHEN m.ordering_key IS NULL OR row_number() OVER (PARTITION BY m.lane, m.ordering_key ORDER BY m.id) = 1
      THEN clock_timestamp() END,
    'enqueued with an id below the floor of its lane',
    m.key,
    m.subject,
    m.headers,
    m.payload,
    m.created_at
  FROM "oncebox".lane_cursor AS c
  CROSS JOIN pg_control_system() AS here
  CROSS JOIN LATERAL (
    SELECT n.lane, n.id, n.tableoid, n.ordering_key, n.key, n.subject, n.headers, n.payload, n.created_at
    FROM "oncebox".log AS n
    WHERE n.lane = c.lane
      AND n.id <= repair_ids.stood_at
      -- While restored rows are drained, and before, their snapshot says nothing of rows that were
      -- written here.
      AND n.id <= greatest(c.floor, CASE
        WHEN c.reset_until IS NOT NULL
          OR c.system_identifier <> here.system_identifier
          OR pg_snapshot_xmax(c.snap) > pg_snapshot_xmax(pg_current_snapshot())
        THEN c.high
      END)
      AND "oncebox".written_by(n.xmin) >= n.xact
  ) AS m
  WHERE NOT EXISTS (SELECT FROM "oncebox".discarded AS d WHERE d.lane = m.lane AND d.id = m.id)
  ON CONFLICT ON CONSTRAINT parked_pkey DO NOTHING;
  GET DIAGNOSTICS set_aside = ROW_COUNT;
  UPDATE "oncebox".reset SET snap = pg_current_snapshot();
  EXECUTE format('ALTER SEQUENCE "oncebox".message_id_seq RESTART WITH %s', raised_to + 1);
END $$;

CREATE FUNCTION oncebox.replay_messages(lane smallint, ids bigint[], by text, note text, request text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
  PERFORM FROM "oncebox".maintenance FOR UPDATE;
  PERFORM FROM "oncebox".lane AS l WHERE l.lane = $1 FOR UPDATE;
  RETURN QUERY
  WITH wanted AS MATERIALIZED (
    SELECT m.lane, m.id, m.turn, m.key, m.subject, m.ordering_key, m.headers, m.payload, m.created_at
    FROM "oncebox".message AS m
    WHERE m.lane = $1
      AND m.id = ANY ($2)
      AND NOT EXISTS (
        SELECT FROM "oncebox".parked AS p
        WHERE p.lane = m.lane AND p.id = m.id AND (p.replay = 0 OR p.dead_at IS NULL)
        OFFSET 0
      )
      AND NOT EXISTS (
        SELECT FROM "oncebox".discarded AS d
        WHERE d.lane = m.lane AND d.id = m.id
        OFFSET 0
      )
  ),
  numbered AS (
    INSERT INTO "oncebox".replay AS r (lane, id, number, request)
    SELECT w.lane, w.id, 1, $5
    FROM wanted AS w
    ORDER BY w.id
    ON CONFLICT ON CONSTRAINT replay_pkey DO UPDATE
    SET
      number = r.number + 1,
      request = excluded.request,
      requested_at = excluded.requested_at,
      turn = excluded.turn
    WHERE r.request <> excluded.request
    RETURNING r.lane, r.id, r.number
  ),
  placed AS (
    SELECT w.*, n.number, row_number() OVER (PARTITION BY w.ordering_key ORDER BY w.id) AS place
    FROM numbered AS n
    JOIN wanted AS w ON w.lane = n.lane AND w.id = n.id
  ),
  requested AS (
    INSERT INTO "oncebox".parked AS p (
      lane, id, turn, ordering_key, attempts, next_attempt_at, error, cause, replay, key, subject, headers, payload, created_at
    )
    SELECT
      w.lane,
      w.id,
      w.turn,
      w.ordering_key,
      0,
      CASE WHEN w.place = 1 OR w.ordering_key IS NULL THEN clock_timestamp() END,
      'to be replayed',
      'replay',
      w.number,
      w.key,
      w.subject,
      w.headers,
      w.payload,
      w.created_at
    FROM placed AS w
    ORDER BY w.id
    ON CONFLICT ON CONSTRAINT parked_pkey DO UPDATE
    SET
      attempts = 0,
      next_attempt_at = excluded.next_attempt_at,
      dead_at = NULL,
      error = excluded.error,
      cause = excluded.cause,
      replay = excluded.replay,
      parked_at = excluded.parked_at
  )
  INSERT INTO "oncebox".audit (operator, note, action, lane, message_id, key, subject, reason)
  SELECT $3, $4, 'replay', w.lane, w.id, w.key, w.subject, $5
  FROM placed AS w
  RETURNING message_id;
END $_$;

COMMENT ON FUNCTION oncebox.replay_messages(lane smallint, ids bigint[], by text, note text, request text) IS 'For operators: asks for settled messages of a lane to be sent again, each under the next number, unless this request has asked before, or a replay is still to be sent. Returns their ids.';

CREATE FUNCTION oncebox.request_fingerprint(method text, path text, query text, credentials jsonb, content_type text, content bytea) RETURNS bytea
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  fields bytea := "oncebox".sized('oncebox http 1') || "oncebox".sized(convert_to(method, 'UTF8'))
    || "oncebox".sized(convert_to(path, 'LATIN1'));
  media record;
BEGIN
  IF jsonb_typeof(credentials) IS DISTINCT FROM 'array' OR EXISTS (
    SELECT
    FROM jsonb_array_elements(CASE jsonb_typeof(credentials) WHEN 'array' THEN credentials END) AS c (pair)
    WHERE CASE jsonb_typeof(c.pair)
      WHEN 'array' THEN jsonb_array_length(c.pair) <> 2
        OR jsonb_typeof(c.pair -> 0) <> 'string' OR jsonb_typeof(c.pair -> 1) <> 'string'
      ELSE true
    END
  ) THEN
    RAISE EXCEPTION 'credentials must be an array of pairs of a header''s name and value' USING ERRCODE = 'OB011',
      HINT = 'For example [["authorization", "Bearer .."]]; [] where a request has none.';
  END IF;
  -- Parameters in the order of their names; those of one name keep theirs.
  SELECT fields || "oncebox".sized(convert_to(coalesce(
           string_agg(p.text, '&' ORDER BY split_part(p.text, '=', 1) COLLATE "C", p.n), ''), 'LATIN1'))
  INTO fields
  FROM unnest(string_to_array(query, '&')) WITH ORDINALITY AS p (text, n)
  WHERE p.text <> '';
  SELECT fields || coalesce(string_agg(
           "oncebox".sized('credential') || "oncebox".sized(convert_to(c.pair ->> 0, 'UTF8'))
           || "oncebox".sized(convert_to(c.pair ->> 1, 'LATIN1')), ''::bytea ORDER BY c.n), ''::bytea)
  INTO fields
  FROM jsonb_array_elements(credentials) WITH ORDINALITY AS c (pair, n);
  IF content_type IS NULL THEN
    RETURN sha256(fields || "oncebox".sized(content));
  END IF;
  SELECT m.kind, m.boundary INTO media FROM "oncebox".media_type(content_type) AS m;
  fields := fields || "oncebox".sized(convert_to(media.kind, 'UTF8'));
  IF media.boundary IS NULL OR content = '' THEN
    RETURN sha256(fields || "oncebox".sized(content));
  END IF;
  -- Split as text, in time that grows with the length. A delimiter begins with "--", which is in no
  -- escape, so that it is found where the bytes have it and nowhere else.
  SELECT fields || string_agg("oncebox".sized(decode(s.text, 'escape')), ''::bytea ORDER BY s.n)
  INTO fields
  FROM string_to_table(encode(content, 'escape'), encode(convert_to('--' || media.boundary, 'UTF8'), 'escape'))
    WITH ORDINALITY AS s (text, n);
  RETURN sha256(fields);
END $$;

COMMENT ON FUNCTION oncebox.request_fingerprint(method text, path text, query text, credentials jsonb, content_type text, content bytea) IS 'Tells a repeated request from another one with the same key. Credentials are a JSON array of pairs of a header''s name and value; a content type of NULL says that the service itself has chosen the content.';

CREATE FUNCTION oncebox.request_key(tenant text, client_key text) RETURNS text
    LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  root text := "oncebox".root_key(client_key);
  whole text;
BEGIN
  IF tenant = '' THEN
    RETURN root;
  END IF;
  SELECT string_agg(CASE WHEN b.hex ~ '^(3[0-9]|[46][1-9a-f]|[57][0-9a]|2d|2e|5f)$' THEN convert_from(decode(b.hex, 'hex'), 'UTF8')
                         ELSE '%' || upper(b.hex) END, '' ORDER BY b.n) || '/' || root
  INTO whole
  FROM (
    SELECT m[1] AS hex, n
    FROM regexp_matches(encode(convert_to(tenant, 'UTF8'), 'hex'), '..', 'g') WITH ORDINALITY AS r (m, n)
  ) AS b;
  IF octet_length(whole) <= 128 AND octet_length(replace(replace(whole, '%', '%25'), ':', '%3A')) <= 255 THEN
    RETURN "oncebox".root_key(whole);
  END IF;
  RETURN encode(sha256(int8send(octet_length(convert_to(tenant, 'UTF8'))) || convert_to(tenant || root, 'UTF8')), 'hex');
END $_$;

CREATE FUNCTION oncebox.resend_loss(lane smallint, stream text, since timestamp with time zone, by text, note text, OUT messages bigint, OUT milestone timestamp with time zone) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  -- The locks of resend_lost(), so that no relay moves the lane after it was counted.
  PERFORM FROM "oncebox".maintenance FOR UPDATE;
  PERFORM FROM "oncebox".lane AS l WHERE l.lane = resend_loss.lane FOR UPDATE;
  SELECT c.* INTO messages, milestone FROM "oncebox".count_lost(resend_loss.lane, resend_loss.stream, resend_loss.since) AS c;
  IF NOT "oncebox".resend_lost(resend_loss.lane, resend_loss.stream, resend_loss.since) THEN
    messages := NULL;
    RETURN;
  END IF;
  INSERT INTO "oncebox".audit (operator, note, action, lane, messages, reason)
  VALUES (
    resend_loss.by, resend_loss.note, 'resend', resend_loss.lane, resend_loss.messages,
    format('lost by stream %s', resend_loss.stream)
      || coalesce(to_char(milestone AT TIME ZONE 'UTC', '" since "YYYY-MM-DD"T"HH24:MI:SS"Z"'), '')
  );
END $$;

COMMENT ON FUNCTION oncebox.resend_loss(lane smallint, stream text, since timestamp with time zone, by text, note text, OUT messages bigint, OUT milestone timestamp with time zone) IS 'For operators: resend_lost() by hand. Returns how many messages are sent again, and since which milestone; NULL when there is nothing to do. The loss counts as dealt with, also if since leaves messages out.';

CREATE FUNCTION oncebox.resend_lost(wanted_lane smallint, wanted_stream text, since timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  stands record;
  place record;
BEGIN
  PERFORM FROM "oncebox".maintenance FOR UPDATE;
  PERFORM FROM "oncebox".lane AS l WHERE l.lane = wanted_lane FOR UPDATE;
  SELECT c.* INTO STRICT stands FROM "oncebox".lane_cursor AS c WHERE c.lane = wanted_lane;
  SELECT p.* INTO place FROM "oncebox".resend_place(wanted_lane, wanted_stream, since) AS p;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE "oncebox".loss AS l
  SET
    subjects = (SELECT s.subjects FROM "oncebox".stream AS s WHERE s.name = wanted_stream),
    resending_at = clock_timestamp(), rewound_number = stands.number + 1, until_floor = place.until_floor,
    until_high = place.until_high, until_snap = place.until_snap, until_target = place.until_target,
    until_after = place.until_after
  WHERE l.lane = wanted_lane AND l.stream = wanted_stream AND l.resending_at IS NULL;
  IF place.goes_back THEN
    INSERT INTO "oncebox".cursor (lane, number, floor, high, snap, system_identifier, acknowledged)
    VALUES (wanted_lane, stands.number + 1, place.floor, place.high, place.snap, stands.system_identifier,
            stands.acknowledged);
    DELETE FROM "oncebox".cursor AS c WHERE c.lane = wanted_lane AND c.number = stands.number;
    DELETE FROM "oncebox".milestone AS m WHERE m.lane = wanted_lane AND m.number > place.at_number;
    UPDATE "oncebox".receipt AS r
    SET floor = place.floor, high = place.high, snap = place.snap
    WHERE r.lane = wanted_lane AND r.number > place.at_number;
    UPDATE "oncebox".loss AS l
    SET floor = place.floor, high = place.high, snap = place.snap
    WHERE l.lane = wanted_lane AND l.resending_at IS NULL AND coalesce(l.receipt_number, -1) > place.at_number;
  END IF;
  UPDATE "oncebox".segment AS s
  SET is_live = true, drained_at = NULL
  WHERE NOT s.is_empty AND NOT s.is_live AND "oncebox".segment_is_due(s.number);
  -- Messages after the place that the lane goes back to are read from the log again, in their
  -- order, also those that are parked: else these would overtake lost messages of their ordering
  -- key. A lost message before that place is parked. So is a message whose segment is emptied:
  -- every lost message of its ordering key that is still in the log comes after it.
  DELETE FROM "oncebox".parked AS p
  USING "oncebox".log AS m, "oncebox".stream AS s
  WHERE p.lane = wanted_lane
    AND p.dead_at IS NULL
    AND p.replay = 0
    AND m.lane = p.lane
    AND m.id = p.id
    AND s.name = wanted_stream
    AND m.subject COLLATE "C" ~ s.subjects
    AND NOT (m.id <= place.floor OR m.id <= place.high AND pg_visible_in_snapshot(m.xact, place.snap));
  WITH taken AS (
    DELETE FROM "oncebox".late_receipt AS r
    WHERE r.lane = wanted_lane AND r.stream = wanted_stream AND r.sequence > place.sequence
      AND r.at BETWEEN coalesce(place.reached_at, '-infinity') AND place.found_at
    RETURNING r.*
  ),
  gone AS (
    SELECT m.*
    FROM (SELECT t.id, max(t.replay) AS replay FROM taken AS t GROUP BY t.id) AS t
    CROSS JOIN LATERAL (
      SELECT n.id, "oncebox".turn_of(n.tableoid) AS turn, n.ordering_key, t.replay, n.key, n.subject, n.headers, n.payload,
             n.created_at
      FROM "oncebox".log AS n
      WHERE n.lane = wanted_lane AND n.id = t.id
        AND (n.id <= place.floor OR n.id <= place.high AND pg_visible_in_snapshot(n.xact, place.snap))
      UNION ALL
      SELECT n.id, n.turn, n.ordering_key, t.replay, n.key, n.subject, n.headers, n.payload, n.created_at
      FROM taken AS n
      WHERE n.id = t.id AND n.replay = t.replay AND n.key IS NOT NULL
    ) AS m
  )
  INSERT INTO "oncebox".parked (
    lane, id, turn, ordering_key, attempts, next_attempt_at, error, cause, replay, key, subject, headers, payload, created_at
  )
  SELECT
    wanted_lane, m.id, m.turn, m.ordering_key, 0,
    CASE WHEN m.ordering_key IS NULL OR row_number() OVER (PARTITION BY m.ordering_key ORDER BY m.id) = 1
      THEN clock_timestamp() END,
    'the stream has lost it after it had acknowledged it', 'lost', m.replay, m.key, m.subject, m.headers, m.payload, m.created_at
  FROM gone AS m
  WHERE NOT EXISTS (SELECT FROM "oncebox".discarded AS d WHERE d.lane = wanted_lane AND d.id = m.id)
  ON CONFLICT ON CONSTRAINT parked_pkey DO NOTHING;
  PERFORM "oncebox".wake_relay();
  RETURN true;
END $$;

COMMENT ON FUNCTION oncebox.resend_lost(wanted_lane smallint, wanted_stream text, since timestamp with time zone) IS 'Has the relays send messages again that a stream lost of a lane; for `oncebox outbox resend`.';

CREATE FUNCTION oncebox.resend_missing(lane smallint, ids bigint[], by text, note text, why text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
  PERFORM FROM "oncebox".maintenance FOR UPDATE;
  PERFORM FROM "oncebox".lane AS l WHERE l.lane = $1 FOR UPDATE;
  RETURN QUERY
  WITH sent AS (
    INSERT INTO "oncebox".parked (
      lane, id, turn, ordering_key, attempts, next_attempt_at, error, cause, key, subject, headers, payload, created_at
    )
    SELECT
      m.lane,
      m.id,
      m.turn,
      m.ordering_key,
      0,
      CASE WHEN m.ordering_key IS NULL OR row_number() OVER (PARTITION BY m.ordering_key ORDER BY m.id) = 1
        THEN clock_timestamp() END,
      'the stream does not hold it, or holds it otherwise',
      'lost',
      m.key,
      m.subject,
      m.headers,
      m.payload,
      m.created_at
    FROM "oncebox".message AS m
    JOIN "oncebox".lane_cursor AS c ON c.lane = m.lane
    WHERE m.lane = $1
      AND m.id = ANY ($2::bigint[])
      AND (m.id <= c.floor OR m.id <= c.high AND c.reset_until IS NULL AND pg_visible_in_snapshot(m.xact, c.snap))
      AND NOT EXISTS (
        SELECT FROM "oncebox".discarded AS d
        WHERE d.lane = m.lane AND d.id = m.id
        OFFSET 0
      )
    ON CONFLICT ON CONSTRAINT parked_pkey DO NOTHING
    RETURNING parked.lane, parked.id, parked.key, parked.subject
  )
  INSERT INTO "oncebox".audit (operator, note, action, lane, message_id, key, subject, reason)
  SELECT $3, $4, 'resend', s.lane, s.id, s.key, s.subject, $5
  FROM sent AS s
  RETURNING message_id;
END $_$;

COMMENT ON FUNCTION oncebox.resend_missing(lane smallint, ids bigint[], by text, note text, why text) IS 'For operators: parks settled messages of a lane that a stream does not hold, or holds otherwise, so that they are sent again under their ids. Returns their ids.';

CREATE FUNCTION oncebox.resend_place(wanted_lane smallint, wanted_stream text, since timestamp with time zone, OUT sequence bigint, OUT found_at timestamp with time zone, OUT at_number bigint, OUT reached_at timestamp with time zone, OUT goes_back boolean, OUT floor bigint, OUT high bigint, OUT snap pg_snapshot, OUT until_floor bigint, OUT until_high bigint, OUT until_snap pg_snapshot, OUT until_target pg_snapshot, OUT until_after bigint) RETURNS SETOF record
    LANGUAGE plpgsql STABLE ROWS 1
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  stands record;
  lost record;
  later record;
BEGIN
  SELECT c.* INTO STRICT stands FROM "oncebox".lane_cursor AS c WHERE c.lane = wanted_lane;
  SELECT l.* INTO lost
  FROM "oncebox".loss AS l
  WHERE l.lane = wanted_lane AND l.stream = wanted_stream AND l.resending_at IS NULL
  ORDER BY l.number
  LIMIT 1;
  IF lost IS NULL OR stands.reset_until IS NOT NULL
     OR stands.system_identifier <> (SELECT s.system_identifier FROM pg_control_system() AS s)
     OR pg_snapshot_xmax(stands.snap) > pg_snapshot_xmax(pg_current_snapshot()) THEN
    RETURN;
  END IF;
  sequence := lost.sequence;
  found_at := lost.found_at;
  at_number := coalesce(lost.receipt_number, -1);
  SELECT m.* INTO later
  FROM "oncebox".milestone AS m
  WHERE m.lane = wanted_lane AND m.reached_at <= since AND m.number > at_number AND m.number <= lost.number
  ORDER BY m.number DESC
  LIMIT 1;
  IF FOUND THEN
    at_number := later.number;
    reached_at := later.reached_at;
    lost.floor := later.floor;
    lost.high := later.high;
    lost.snap := later.snap;
  END IF;
  -- Without a receipt every message above the noted place is due, and one below it that is due
  -- already stays due. The noted snapshot is younger than the cursor: that alone must not keep the
  -- lane in its place.
  IF at_number = -1 THEN
    lost.high := least(stands.high, lost.high);
    lost.floor := least(stands.floor, lost.floor);
    lost.snap := stands.snap;
  END IF;
  goes_back := at_number = -1 OR stands.high >= greatest(lost.high, lost.floor)
    AND pg_snapshot_xmax(stands.snap) >= pg_snapshot_xmax(lost.snap);
  IF goes_back THEN
    SELECT lost.floor, lost.high, lost.snap INTO floor, high, snap;
  ELSE
    SELECT stands.floor, stands.high, stands.snap INTO floor, high, snap;
  END IF;
  -- A lane that is being sent again already is perhaps further back than this one would be.
  SELECT l.until_floor, l.until_high, l.until_snap, l.until_target, l.until_after
  INTO until_floor, until_high, until_snap, until_target, until_after
  FROM "oncebox".loss AS l
  WHERE l.lane = wanted_lane AND l.resending_at IS NOT NULL AND l.ended_at IS NULL AND l.until_high > stands.high
  ORDER BY l.until_high DESC
  LIMIT 1;
  IF NOT FOUND THEN
    SELECT stands.floor, stands.high, stands.snap, stands.target, stands.after
    INTO until_floor, until_high, until_snap, until_target, until_after;
  END IF;
  RETURN NEXT;
END $$;

CREATE FUNCTION oncebox.resume_delivery(kind text, value text, by text, note text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
  RETURN QUERY
  WITH resumed AS (
    DELETE FROM "oncebox".pause
    WHERE pause.kind = $1 AND pause.value = $2
    RETURNING pause.kind, pause.value, pause.ends_at
  )
  INSERT INTO "oncebox".audit (operator, note, action, reason)
  SELECT $3, $4, 'resume', concat_ws(' ', r.kind, r.value)
  FROM resumed AS r
  WHERE r.ends_at > clock_timestamp()
  RETURNING id;
END $_$;

COMMENT ON FUNCTION oncebox.resume_delivery(kind text, value text, by text, note text) IS 'For operators: ends a pause, or a throttle. No row when there was none.';

CREATE FUNCTION oncebox.retention_max() RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (((100 * 366))::double precision * (86400)::double precision);

CREATE FUNCTION oncebox.retry_canary_row(c oncebox.canary, r oncebox.canary_row, OUT is_retried boolean, OUT outbox text, OUT key text, OUT subject text, OUT headers text, OUT payload bytea, OUT number bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  PERFORM set_config('oncebox.command', c.command, true);
  IF c.kind = 'message' THEN
    PERFORM FROM "oncebox".lane AS l WHERE l.lane = r.lane FOR UPDATE;
    PERFORM FROM "oncebox".parked AS p WHERE p.lane = r.lane AND p.id = r.id AND p.dead_at = r.died_at;
    is_retried := FOUND;
    IF is_retried THEN
      PERFORM "oncebox".retry_dead(r.lane, ARRAY[r.id], c.operator, c.note);
    END IF;
  ELSE
    PERFORM FROM "oncebox".dead_letter AS d WHERE d.id = r.id AND d.created_at = r.died_at FOR UPDATE;
    -- No inbox would handle it any more: see 0027_edit.sql.
    is_retried := FOUND AND NOT EXISTS (
      SELECT
      FROM "oncebox".inbox AS i
      WHERE i.scope = r.scope AND i.tenant = r.tenant AND i.key = r.key AND i.status = 'dead' AND i.fingerprint = ''
    );
    IF is_retried AND NOT "oncebox".retry_in_line(r.id, c.operator, c.note) THEN
      SELECT l.outbox, l.key, l.subject, l.headers, l.payload, l.number
      INTO outbox, key, subject, headers, payload, number
      FROM "oncebox".retry_letter(r.id, c.operator, c.note) AS l;
    END IF;
  END IF;
  IF is_retried THEN
    -- The relay is only the hand of the operator.
    UPDATE "oncebox".audit AS a SET database_user = c.database_user WHERE a.id = currval('"oncebox".audit_id_seq');
  END IF;
  UPDATE "oncebox".canary_row AS w
  SET
    state = CASE WHEN is_retried THEN 'watched' ELSE 'skipped' END,
    retried_at = CASE WHEN is_retried THEN clock_timestamp() END,
    last_letter = (SELECT q.last_value FROM "oncebox".dead_letter_id_seq AS q),
    settled_at = (SELECT i.created_at FROM "oncebox".inbox AS i WHERE i.scope = r.scope AND i.tenant = r.tenant AND i.key = r.key)
  WHERE w.canary = c.id AND w.place = r.place;
END $$;

CREATE FUNCTION oncebox.retry_dead(lane smallint, ids bigint[], by text, note text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
  PERFORM FROM "oncebox".lane AS l WHERE l.lane = $1 FOR UPDATE;
  RETURN QUERY
  INSERT INTO "oncebox".audit (operator, note, action, lane, message_id, key, subject, reason)
  SELECT $3, $4, 'retry', r.lane, r.id, r.key, r.subject, r.error
  FROM "oncebox".make_due($1, $2) AS r
  RETURNING message_id;
END $_$;

COMMENT ON FUNCTION oncebox.retry_dead(lane smallint, ids bigint[], by text, note text) IS 'For operators: makes dead messages of a lane due again, with their attempts forgotten. Returns their ids.';

CREATE FUNCTION oncebox.retry_failing(scope text, tenant text, key text, message text, by text, note text) RETURNS TABLE(outbox text, number bigint)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH taken AS (
    UPDATE "oncebox".inbox_attempt AS a
    SET due_at = clock_timestamp()
    WHERE a.scope = $1
      AND a.tenant = $2
      AND a.key = $3
      AND a.message = $4
      AND a.failed_at IS NOT NULL
      AND NOT EXISTS (
        SELECT
        FROM "oncebox".inbox_attempt AS o
        WHERE o.scope = a.scope AND o.tenant = a.tenant AND o.key = a.key
          AND o.due_at <= clock_timestamp()
          AND NOT EXISTS (
            SELECT
            FROM "oncebox".inbox_attempt AS p
            WHERE p.scope = a.scope AND p.tenant = a.tenant AND p.key = a.key AND p.failed_at > o.due_at
          )
      )
      AND NOT EXISTS (
        SELECT
        FROM "oncebox".inbox AS i
        WHERE i.scope = $1 AND i.tenant = $2 AND i.key = $3
      )
    RETURNING a.scope, a.tenant, a.key, a.subject, a.reason
  ),
  released AS (
    UPDATE "oncebox".inbox_claim AS c
    SET lease_until = clock_timestamp()
    FROM taken AS t
    WHERE c.scope = t.scope
      AND c.tenant = t.tenant
      AND c.key = t.key
      AND c.state <> 'running'
      AND c.lease_until > clock_timestamp()
  ),
  noted AS (
    INSERT INTO "oncebox".audit (operator, note, action, scope, key, subject, reason)
    SELECT $5, $6, 'retry', t.scope, t.key, t.subject, t.reason
    FROM taken AS t
  )
  SELECT
    (SELECT o.identity FROM "oncebox".outbox AS o) AS outbox,
    (
      SELECT (extract(epoch FROM max(a.failed_at)) * 1000000)::bigint
      FROM "oncebox".inbox_attempt AS a
      WHERE a.scope = $1 AND a.tenant = $2 AND a.key = $3
    ) AS number
  FROM taken AS t
$_$;

COMMENT ON FUNCTION oncebox.retry_failing(scope text, tenant text, key text, message text, by text, note text) IS 'For operators: makes a failing message due now. The caller publishes a copy of it, and then commits.';

CREATE FUNCTION oncebox.retry_in_line(id bigint, by text, note text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  letter "oncebox".dead_letter;
BEGIN
  SELECT d.* INTO letter FROM "oncebox".dead_letter AS d WHERE d.id = retry_in_line.id AND d.ordering_key IS NOT NULL FOR UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE "oncebox".dead_letter AS d SET ordering_key = NULL WHERE d.id = letter.id;
  DELETE FROM "oncebox".dead_letter AS d WHERE d.id = letter.id;
  INSERT INTO "oncebox".inbox_behind
    (id, scope, tenant, key, ordering_key, subject, headers, payload, stream, stream_sequence, stored_at)
  VALUES (letter.id, letter.scope, letter.tenant, letter.key, letter.ordering_key, letter.subject, letter.headers,
          letter.payload, letter.stream, letter.stream_sequence, letter.stored_at)
  ON CONFLICT ON CONSTRAINT inbox_behind_once DO NOTHING;
  DELETE FROM "oncebox".inbox AS i
  WHERE i.scope = letter.scope AND i.tenant = letter.tenant AND i.key = letter.key AND i.status = 'dead'
    AND i.fingerprint = coalesce(letter.fingerprint, "oncebox".inbox_fingerprint(letter.payload));
  INSERT INTO "oncebox".audit (operator, note, action, message_id, scope, key, subject, reason)
  VALUES (retry_in_line.by, retry_in_line.note, 'retry', letter.id, letter.scope, letter.key, letter.subject, letter.reason);
  PERFORM "oncebox".advance_line(letter.scope, letter.ordering_key);
  RETURN true;
END $$;

COMMENT ON FUNCTION oncebox.retry_in_line(id bigint, by text, note text) IS 'For operators: has a dead letter of a line run again, before those that wait for it. False for one of no line: retry_letter().';

CREATE FUNCTION oncebox.retry_letter(id bigint, by text, note text) RETURNS TABLE(outbox text, key text, subject text, headers text, payload bytea, number bigint)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH taken AS (
    DELETE FROM "oncebox".dead_letter
    WHERE dead_letter.id = $1
    RETURNING dead_letter.id, scope, tenant, key, subject, headers, payload, reason, fingerprint
  ),
  freed AS (
    DELETE FROM "oncebox".inbox AS i
    USING taken AS t
    WHERE i.scope = t.scope
      AND i.tenant = t.tenant
      AND i.key = t.key
      AND i.status = 'dead'
      AND i.fingerprint = coalesce(t.fingerprint, "oncebox".inbox_fingerprint(t.payload))
  ),
  noted AS (
    INSERT INTO "oncebox".audit (operator, note, action, message_id, scope, key, subject, reason)
    SELECT $2, $3, 'retry', t.id, t.scope, t.key, t.subject, t.reason
    FROM taken AS t
  )
  SELECT
    (SELECT o.identity FROM "oncebox".outbox AS o) AS outbox,
    t.key,
    t.subject,
    t.headers::text AS headers,
    t.payload,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS number
  FROM taken AS t
$_$;

COMMENT ON FUNCTION oncebox.retry_letter(id bigint, by text, note text) IS 'For operators: takes a dead letter out, and frees its key if it died of this payload. The caller publishes the message, and then commits.';

CREATE FUNCTION oncebox.retry_parked(lane smallint, ids bigint[], by text, note text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
  PERFORM FROM "oncebox".lane AS l WHERE l.lane = $1 FOR UPDATE;
  RETURN QUERY
  WITH due AS (
    UPDATE "oncebox".parked AS p
    SET next_attempt_at = clock_timestamp()
    WHERE p.lane = $1 AND p.id = ANY ($2) AND p.dead_at IS NULL AND p.next_attempt_at IS NOT NULL
    RETURNING p.id, p.key, p.subject, p.error
  )
  INSERT INTO "oncebox".audit (operator, note, action, lane, message_id, key, subject, reason)
  SELECT $3, $4, 'retry', $1, d.id, d.key, d.subject, d.error
  FROM due AS d
  RETURNING message_id;
END $_$;

COMMENT ON FUNCTION oncebox.retry_parked(lane smallint, ids bigint[], by text, note text) IS 'For operators: has relays try parked messages of a lane again now, and not after their pause. Returns their ids.';

CREATE FUNCTION oncebox.retry_saga(saga_id bigint, step text DEFAULT NULL::text) RETURNS text[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  found_state text;
BEGIN
  SELECT s.state INTO found_state FROM "oncebox".saga AS s WHERE s.id = retry_saga.saga_id FOR UPDATE;
  IF found_state = 'quarantined' AND retry_saga.step IS NULL THEN
    UPDATE "oncebox".saga AS s
    SET state = CASE s.direction WHEN 'forward' THEN 'running' ELSE 'compensating' END, reason = NULL,
        due_at = clock_timestamp(), changed_at = clock_timestamp(), revision = s.revision + 1
    WHERE s.id = retry_saga.saga_id;
    RETURN '{}';
  END IF;
  RETURN "oncebox".ask_saga(retry_saga.saga_id, retry_saga.step, 'retry');
END $$;

COMMENT ON FUNCTION oncebox.retry_saga(saga_id bigint, step text) IS 'Ask for a new attempt at a step, or compensation, that waits for an operator; at all of them when no step is given. A saga in quarantine is read again. Returns the steps. Error OB009 when nothing waits.';

CREATE FUNCTION oncebox.retry_saga_as(saga_id bigint, step text, by text, note text) RETURNS TABLE(command text, is_discarded boolean)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH asked AS MATERIALIZED (
    SELECT s.id, s.type, s.key, s.direction = 'backward' AS is_undo, "oncebox".retry_saga(s.id, $2::text) AS steps
    FROM "oncebox".saga AS s
    WHERE s.id = $1
  ),
  commands AS MATERIALIZED (
    SELECT
      a.type,
      a.key,
      t.step,
      c.subject,
      concat(
        a.key, ':', t.step, CASE WHEN c.attempt > 1 THEN ':#' || c.attempt END, CASE WHEN a.is_undo THEN ':undo' END
      ) AS command,
      c.state IN ('failed', 'undo-failed') AS may_have_died
    FROM asked AS a
    LEFT JOIN LATERAL unnest(a.steps) AS t (step) ON true
    LEFT JOIN LATERAL (
      SELECT
        p.state,
        CASE WHEN a.is_undo THEN p.undo_subject ELSE p.subject END AS subject,
        CASE WHEN a.is_undo THEN p.undo_attempt ELSE p.attempt END AS attempt
      FROM "oncebox".saga_step AS p
      WHERE p.saga_id = a.id AND p.step = t.step
    ) AS c ON true
  ),
  only_letter AS (
    SELECT min(d.id) AS id
    FROM commands AS c
    JOIN "oncebox".dead_letter AS d ON d.key = c.command COLLATE "C" AND d.subject = c.subject
    WHERE c.may_have_died
    GROUP BY c.command
    HAVING count(*) = 1
  ),
  gone AS (
    DELETE FROM "oncebox".dead_letter AS d
    USING only_letter AS o
    WHERE d.id = o.id
    RETURNING d.id, d.scope, d.key, d.subject, d.reason
  ),
  discarded AS (
    INSERT INTO "oncebox".audit (operator, note, action, message_id, scope, key, subject, reason)
    SELECT $3, $4, 'discard', g.id, g.scope, g.key, g.subject, g.reason
    FROM gone AS g
  ),
  noted AS (
    INSERT INTO "oncebox".audit (operator, note, action, scope, key, reason)
    SELECT $3, $4, 'retry', c.type, c.key, c.step
    FROM commands AS c
  )
  SELECT
    c.command,
    CASE WHEN c.may_have_died THEN EXISTS (SELECT FROM gone AS g WHERE g.key = c.command COLLATE "C") END AS is_discarded
  FROM commands AS c
$_$;

COMMENT ON FUNCTION oncebox.retry_saga_as(saga_id bigint, step text, by text, note text) IS 'For operators: retry_saga(), recorded. A dead letter of the last attempt is discarded, and recorded, too.';

CREATE FUNCTION oncebox.rewrite_message(lane smallint, id bigint, key text, headers jsonb, payload bytea) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  old record;
  kept regclass;
BEGIN
  SELECT l.tableoid::regclass AS segment, l.key, l.subject, l.payload INTO old
  FROM "oncebox".log AS l
  WHERE l.lane = rewrite_message.lane AND l.id = rewrite_message.id;
  SELECT l.tableoid::regclass INTO kept FROM "oncebox".log AS l WHERE l.key = rewrite_message.key AND l.lane = -2;
  IF kept IS NOT NULL THEN
    EXECUTE format('DELETE FROM %s AS m WHERE m.lane = -2 AND m.key = $1', kept) USING rewrite_message.key;
  END IF;
  IF old.segment IS NULL THEN
    RETURN;
  END IF;
  EXECUTE format('UPDATE %s AS m SET key = $3, headers = $4, payload = $5 WHERE m.lane = $1 AND m.id = $2', old.segment)
    USING rewrite_message.lane, rewrite_message.id, rewrite_message.key, rewrite_message.headers, rewrite_message.payload;
  IF kept IS NULL THEN
    PERFORM "oncebox".append(ARRAY[nextval('"oncebox".message_id_seq')], '{-2}', ARRAY[old.key], ARRAY[old.subject], '{NULL}',
                            ARRAY['{}'::jsonb], ARRAY[old.payload], true);
  END IF;
END $_$;

CREATE FUNCTION oncebox.root_key(client_key text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  escaped text := replace(replace(client_key, '%', '%25'), ':', '%3A');
BEGIN
  IF octet_length(client_key) NOT BETWEEN 1 AND 128 THEN
    RAISE EXCEPTION 'root key is % bytes long; the limit is 1 to 128 bytes', octet_length(client_key)
      USING ERRCODE = 'OB002';
  END IF;
  PERFORM "oncebox".check_key(escaped);
  RETURN escaped;
END $$;

COMMENT ON FUNCTION oncebox.root_key(client_key text) IS 'The first level of a key, from a name of your own: ":" and "%" in it are written as %3A and %25.';

CREATE FUNCTION oncebox.running_canaries() RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  DELETE FROM "oncebox".canary AS k
  WHERE k.id = (
    SELECT o.id
    FROM "oncebox".canary AS o
    WHERE o.ended_at < clock_timestamp() - interval '7 days'
      OR o.ended_at IS NOT NULL AND o.id <= (SELECT n.id FROM "oncebox".canary AS n ORDER BY n.id DESC OFFSET 100 LIMIT 1)
    ORDER BY o.id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
  );
  RETURN QUERY SELECT k.id FROM "oncebox".canary AS k WHERE k.state = 'running' ORDER BY k.id;
END $$;

COMMENT ON FUNCTION oncebox.running_canaries() IS 'For relays: the canaries that go on; forgets an old one that has ended.';

CREATE FUNCTION oncebox.segment_is_due(number smallint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  is_due boolean;
BEGIN
  EXECUTE format($due$
    SELECT EXISTS (
      SELECT
      FROM "oncebox".lane AS l
      LEFT JOIN "oncebox".lane_cursor AS c ON c.lane = l.lane
      CROSS JOIN (SELECT s.system_identifier FROM pg_control_system() AS s OFFSET 0) AS here
      WHERE c.lane IS NULL
        OR c.target IS NOT NULL
        OR c.reset_until IS NOT NULL
        OR c.system_identifier <> here.system_identifier
        OR pg_snapshot_xmax(c.snap) > pg_snapshot_xmax(pg_current_snapshot())
        OR EXISTS (SELECT FROM "oncebox".message_%1$s AS m WHERE m.lane = l.lane AND m.id > c.high)
        OR EXISTS (
          SELECT FROM "oncebox".message_%1$s AS m
          WHERE m.lane = l.lane AND m.xact >= pg_snapshot_xmax(c.snap) AND m.id > c.floor
        )
        OR EXISTS (
          SELECT
          FROM pg_snapshot_xip(c.snap) AS ended (xact)
          JOIN "oncebox".message_%1$s AS m ON m.lane = l.lane AND m.xact = ended.xact AND m.id > c.floor
        )
    )
  $due$, number) INTO is_due;
  RETURN is_due;
END $_$;

CREATE FUNCTION oncebox.send_event(kind text, about text, facts jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  event_key text := concat('event-', gen_random_uuid());
BEGIN
  IF about LIKE 'oncebox.events.%' OR NOT EXISTS (SELECT FROM "oncebox".event_kind AS k WHERE k.kind = send_event.kind) THEN
    RETURN;
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  -- enqueue() refuses these subjects, so that no producer sends an event.
  PERFORM "oncebox".append(
    ARRAY[nextval('"oncebox".message_id_seq')], ARRAY["oncebox".lane_of(event_key)], ARRAY[event_key],
    ARRAY[concat('oncebox.events.', send_event.kind)], '{NULL}', ARRAY['{"Content-Type": "application/json"}'::jsonb],
    ARRAY[convert_to((jsonb_build_object('event', send_event.kind, 'at', clock_timestamp(), 'database', current_database()) || facts)::text, 'UTF8')],
    false
  );
  IF pg_sequence_last_value('"oncebox".relay_asleep') = 1 THEN
    PERFORM "oncebox".wake_relay();
  END IF;
EXCEPTION
  WHEN OTHERS THEN
    RAISE WARNING 'an event "%" was not sent: %', send_event.kind, SQLERRM;
END $$;

COMMENT ON FUNCTION oncebox.send_event(kind text, about text, facts jsonb) IS 'Private: enqueue an event if its kind is chosen and the trouble is not about an event.';

CREATE FUNCTION oncebox.settle(scope text, key text, outcome json DEFAULT NULL::json, tenant text DEFAULT ''::text, status text DEFAULT 'completed'::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  stored bytea;
BEGIN
  IF settle.status IS NULL OR settle.status NOT IN ('completed', 'rejected') THEN
    RAISE EXCEPTION 'status % is neither "completed" nor "rejected"', coalesce('"' || left(settle.status, 300) || '"', 'null')
      USING ERRCODE = 'OB011', HINT = 'A message that is given up is rolled back, then buried: bury().';
  END IF;
  IF json_typeof(settle.outcome) <> 'null' THEN
    stored := convert_to(settle.outcome::text, 'UTF8');
    IF octet_length(stored) > 1048576 THEN
      RAISE EXCEPTION 'outcome is % bytes long; the limit is 1048576 bytes (1 MiB)', octet_length(stored)
        USING ERRCODE = 'OB011', HINT = 'Store large replies in a table of your own, and settle with a reference.';
    END IF;
  END IF;
  IF NOT "oncebox".settle_key(settle.scope, settle.tenant, settle.key, settle.status, stored) THEN
    RAISE EXCEPTION 'key % of scope % is not claimed by this transaction, or settled already',
      coalesce('"' || left(settle.key, 300) || '"', 'null'), coalesce('"' || left(settle.scope, 300) || '"', 'null')
      USING ERRCODE = 'OB010', HINT = 'settle() follows once on a claim() that answered "new", in the same transaction and for the same tenant.';
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.settle(scope text, key text, outcome json, tenant text, status text) IS 'Stores how a key ended that this transaction has claimed; its copies are answered with the outcome.';

CREATE FUNCTION oncebox.settle_batch(scope text, tenants text[] DEFAULT NULL::text[], keys text[] DEFAULT NULL::text[], outcomes text[] DEFAULT NULL::text[], statuses text[] DEFAULT NULL::text[], released_tenants text[] DEFAULT NULL::text[], released_keys text[] DEFAULT NULL::text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  stored bigint;
BEGIN
  DELETE FROM "oncebox".inbox_batch AS b WHERE b.xact = pg_current_xact_id_if_assigned();
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
      UPDATE "oncebox".inbox AS i
      SET status = f.status, outcome = CASE WHEN json_typeof(f.outcome::json) <> 'null' THEN convert_to(f.outcome, 'UTF8') END
      FROM (
        SELECT r.ctid AS place, w.status, w.outcome
        FROM ended AS w
        CROSS JOIN LATERAL (
          SELECT r.ctid
          FROM "oncebox".inbox AS r
          WHERE r.scope = settle_batch.scope AND r.tenant = w.tenant AND r.key = w.key AND "oncebox".is_own(r.xmin)
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
    DELETE FROM "oncebox".inbox AS i
    USING unnest(settle_batch.released_tenants, settle_batch.released_keys) AS w (tenant, key)
    CROSS JOIN LATERAL (
      SELECT r.ctid
      FROM "oncebox".inbox AS r
      WHERE r.scope = settle_batch.scope AND r.tenant = w.tenant AND r.key = w.key AND "oncebox".is_own(r.xmin)
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

COMMENT ON FUNCTION oncebox.settle_batch(scope text, tenants text[], keys text[], outcomes text[], statuses text[], released_tenants text[], released_keys text[]) IS 'Ends a batch, right before COMMIT: stores replies and rejections (a key that just completes need not be named), and gives the released keys back, whose handlers have not run.';

CREATE FUNCTION oncebox.settle_key(scope text, tenant text, key text, status text, outcome bytea) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF settle_key.outcome IS NULL AND settle_key.status = 'completed' THEN
    PERFORM
    FROM "oncebox".inbox AS i
    WHERE i.scope = settle_key.scope AND i.tenant = settle_key.tenant AND i.key = settle_key.key
      AND i.status = 'completed' AND i.outcome IS NULL AND (i.xmin = pg_current_xact_id()::xid OR "oncebox".is_own(i.xmin));
  ELSE
    UPDATE "oncebox".inbox AS i
    SET status = settle_key.status, outcome = settle_key.outcome
    WHERE i.scope = settle_key.scope AND i.tenant = settle_key.tenant AND i.key = settle_key.key
      AND i.status = 'completed' AND i.outcome IS NULL AND (i.xmin = pg_current_xact_id()::xid OR "oncebox".is_own(i.xmin));
  END IF;
  RETURN FOUND;
END $$;

CREATE FUNCTION oncebox.settle_request(scope text, tenant text, key text, is_rejected boolean, status integer, headers jsonb, body bytea) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  stored bytea := "oncebox".encode_response(settle_request.status, settle_request.headers, settle_request.body);
BEGIN
  IF octet_length(stored) > 1048576 THEN
    stored := "oncebox".encode_response(settle_request.status, '[]', NULL);
  END IF;
  IF NOT "oncebox".settle_key(settle_request.scope, settle_request.tenant, settle_request.key,
                             CASE WHEN settle_request.is_rejected THEN 'rejected' ELSE 'completed' END, stored) THEN
    RAISE EXCEPTION 'the request is not claimed by this transaction, or settled already'
      USING ERRCODE = 'OB010', HINT = 'settle_request() follows once on a claim_request() that answered "new", in the same transaction.';
  END IF;
END $$;

COMMENT ON FUNCTION oncebox.settle_request(scope text, tenant text, key text, is_rejected boolean, status integer, headers jsonb, body bytea) IS 'Stores the response of a request that this transaction has claimed. headers: an array of pairs, [["content-type", "text/plain"]], whose characters are the bytes to be sent. A body that is NULL is not kept.';

CREATE FUNCTION oncebox.sized(field bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (int8send((octet_length(field))::bigint) || field);

COMMENT ON FUNCTION oncebox.sized(field bytea) IS 'A part of request_fingerprint(): a field with its length.';

CREATE FUNCTION oncebox.skip_saga_step(saga_id bigint, step text, reply jsonb DEFAULT NULL::jsonb) RETURNS text[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  instance record;
  number integer;
BEGIN
  SELECT s.key, s.state, s.direction = 'backward' AS is_undo INTO instance
  FROM "oncebox".saga AS s
  WHERE s.id = skip_saga_step.saga_id
  FOR UPDATE;
  PERFORM "oncebox".check_skipped_reply(skip_saga_step.saga_id, skip_saga_step.step, skip_saga_step.reply);
  IF instance.state IS DISTINCT FROM 'quarantined' THEN
    RETURN "oncebox".ask_saga(skip_saga_step.saga_id, skip_saga_step.step, 'skip', skip_saga_step.reply);
  END IF;
  SELECT CASE WHEN instance.is_undo THEN t.undo_attempt ELSE t.attempt END INTO number
  FROM "oncebox".saga_step AS t
  WHERE t.saga_id = skip_saga_step.saga_id AND t.step = skip_saga_step.step
    AND CASE WHEN instance.is_undo THEN t.state IN ('undoing', 'undo-failed') ELSE t.state IN ('sent', 'rejected', 'failed') END;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'step "%" of saga "%" is not under way, nor does it wait for an operator', skip_saga_step.step, instance.key
      USING ERRCODE = 'OB009';
  END IF;
  DELETE FROM "oncebox".saga_event AS e
  WHERE e.key = instance.key AND e.step = skip_saga_step.step AND e.is_undo = instance.is_undo;
  INSERT INTO "oncebox".saga_event (key, is_orphan, kind, step, attempt, is_undo, payload)
  VALUES (instance.key, false, 'skip', skip_saga_step.step, number, instance.is_undo,
          coalesce(convert_to(skip_saga_step.reply::text, 'UTF8'), ''));
  UPDATE "oncebox".saga AS s
  SET state = CASE WHEN instance.is_undo THEN 'compensating' ELSE 'running' END, reason = NULL,
      due_at = clock_timestamp(), changed_at = clock_timestamp(), revision = s.revision + 1
  WHERE s.id = skip_saga_step.saga_id;
  RETURN ARRAY[skip_saga_step.step];
END $$;

COMMENT ON FUNCTION oncebox.skip_saga_step(saga_id bigint, step text, reply jsonb) IS 'Go on as if a step that waits for an operator were done, or its compensation, after it was done by hand. Of a saga in quarantine also one that is under way: its answers are deleted. With a reply, as if the participant had sent it. Returns the step. Error OB009 when it does not wait, OB011 when a later step of a file needs a reply that is not given.';

CREATE FUNCTION oncebox.skip_saga_step_as(saga_id bigint, step text, by text, note text, reply jsonb DEFAULT NULL::jsonb) RETURNS TABLE(command text, is_discarded boolean)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH asked AS MATERIALIZED (
    SELECT s.type, s.key, "oncebox".skip_saga_step(s.id, $2::text, $5::jsonb) AS steps
    FROM "oncebox".saga AS s
    WHERE s.id = $1
  )
  INSERT INTO "oncebox".audit (operator, note, action, scope, key, reason)
  SELECT $3, $4, 'skip', a.type, a.key, t.step
  FROM asked AS a
  CROSS JOIN LATERAL unnest(a.steps) AS t (step)
  RETURNING NULL::text AS command, NULL::boolean AS is_discarded
$_$;

COMMENT ON FUNCTION oncebox.skip_saga_step_as(saga_id bigint, step text, by text, note text, reply jsonb) IS 'For operators: skip_saga_step(), recorded.';

CREATE FUNCTION oncebox.snooze(scope text, key text, pause interval, reason text, tenant text DEFAULT ''::text, stream text DEFAULT NULL::text, stream_sequence bigint DEFAULT NULL::bigint, stored_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deliveries bigint DEFAULT 1, longest interval DEFAULT '24:00:00'::interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF snooze.key IS NULL THEN
    PERFORM "oncebox".refuse_null(true, false);
  END IF;
  PERFORM "oncebox".check_inbox_names(snooze.scope, snooze.tenant), "oncebox".check_key(snooze.key), "oncebox".check_stored_at(snooze.stored_at);
  IF num_nulls(snooze.pause, snooze.longest) > 0 OR extract(epoch FROM snooze.pause) NOT BETWEEN 0 AND 30 * 86400
     OR extract(epoch FROM snooze.longest) NOT BETWEEN 1 AND 30 * 86400 THEN
    RAISE EXCEPTION 'pause % is not 0 seconds to 30 days, or longest % not 1 second to 30 days', snooze.pause, snooze.longest
      USING ERRCODE = 'OB011';
  END IF;
  RETURN (
    SELECT clock_timestamp() - r.since < snooze.longest
    FROM "oncebox".record_snooze(snooze.scope, snooze.tenant, snooze.key, snooze.stream, snooze.stream_sequence, snooze.stored_at,
                                snooze.deliveries, snooze.pause, snooze.longest, snooze.reason) AS r
  );
END $$;

COMMENT ON FUNCTION oncebox.snooze(scope text, key text, pause interval, reason text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, longest interval) IS 'Records, after its rollback, that a handler wants a message again after a pause, which is no attempt. False: it has been snoozed for longer than longest, so bury it.';

CREATE FUNCTION oncebox.start_saga(type text, business_id text, data jsonb, version integer DEFAULT NULL::integer) RETURNS TABLE(id bigint, key text, is_new boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
  saga_key text := "oncebox".step_key("oncebox".root_key(start_saga.business_id), start_saga.type);
  document jsonb := jsonb_build_object('data', start_saga.data, 'replies', '{}'::jsonb);
  began_with bytea := sha256(convert_to(start_saga.data::text, 'UTF8'));
  definition record;
  first record;
  standing record;
  new_id bigint;
BEGIN
  IF saga_key IS NULL THEN
    RAISE EXCEPTION 'type or business_id is null' USING ERRCODE = 'OB002';
  END IF;
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('"oncebox" saga ' || start_saga.type, 0));
  SELECT d.* INTO definition
  FROM "oncebox".saga_definition AS d
  WHERE d.type = start_saga.type AND d.plan IS NOT NULL AND (start_saga.version IS NULL OR d.version = start_saga.version)
  ORDER BY d.version DESC
  LIMIT 1;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no file of saga "%"%', start_saga.type, coalesce(', version ' || start_saga.version, '')
      USING ERRCODE = 'OB015', HINT = 'Run `oncebox saga apply FILE`, or `oncebox saga run FILE`. A saga of a program in Rust is started by it.';
  END IF;
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    -- An older snapshot may show a file that was replaced: this fails then.
    PERFORM FROM "oncebox".saga_definition AS d WHERE d.fingerprint = definition.fingerprint FOR SHARE;
  END IF;
  PERFORM "oncebox".check_saga_data(start_saga.type, definition.plan, start_saga.data);
  IF octet_length(saga_key) + 1 + (definition.plan ->> 'longest_step')::integer + octet_length(':#4294967295:undo:reply') > 255 THEN
    RAISE EXCEPTION 'key "%" is too long for those of the commands', saga_key
      USING ERRCODE = 'OB002', HINT = 'Use a shorter business id.';
  END IF;
  SELECT array_agg(c ->> 'step' ORDER BY o) AS steps, array_agg(c ->> 'subject' ORDER BY o) AS subjects,
         array_agg(convert_to("oncebox".render_payload(c -> 'payload', document)::text, 'UTF8') ORDER BY o) AS payloads,
         array_agg((c ->> 'late_in')::float8 ORDER BY o) AS late_in, min((c ->> 'late_in')::float8) AS soonest,
         count(*)::integer AS total
  INTO first
  FROM jsonb_array_elements(definition.plan -> 'first') WITH ORDINALITY AS e (c, o);
  new_id := (SELECT w FROM "oncebox".write_saga(
    start_saga.type, start_saga.business_id, saga_key, definition.version, definition.fingerprint, document::text,
    (definition.plan ->> 'late_in')::float8, least(first.soonest, (definition.plan ->> 'late_in')::float8), definition.scope,
    began_with, first.steps, array_fill('sent'::text, ARRAY[first.total]), array_fill(1, ARRAY[first.total]),
    array_fill(0, ARRAY[first.total]), array_fill(false, ARRAY[first.total]), first.subjects, first.payloads,
    array_fill(NULL::text, ARRAY[first.total]), array_fill(NULL::bytea, ARRAY[first.total]),
    array_fill(NULL::text, ARRAY[first.total]), first.late_in) AS w);
  IF new_id IS NULL THEN
    SELECT * INTO standing
    FROM "oncebox".find_saga(start_saga.type, start_saga.business_id, saga_key, began_with);
    IF NOT FOUND THEN
      RAISE EXCEPTION 'saga "%" changed or went away meanwhile', saga_key
        USING ERRCODE = '40001', HINT = 'Run the transaction again.';
    ELSIF NOT standing.is_same_id OR NOT standing.is_same_data THEN
      RAISE EXCEPTION 'saga "%" is there already, and began with other data or another business id', standing.saga_key
        USING ERRCODE = 'OB016', HINT = 'A business id names one saga of its type. Never use it for anything else.';
    END IF;
    RETURN QUERY SELECT standing.id, standing.saga_key, false;
    RETURN;
  END IF;
  FOR i IN 1 .. first.total LOOP
    IF "oncebox".enqueue("oncebox".step_key(saga_key, first.steps[i]), first.subjects[i], first.payloads[i],
                        jsonb_build_object('Oncebox-Reply-To', definition.reply_to)) IS NULL THEN
      RAISE EXCEPTION 'command "%:%" was sent before, for a saga that is gone', saga_key, first.steps[i]
        USING ERRCODE = 'OB016', HINT = 'Start this one with a business id that was never used.';
    END IF;
  END LOOP;
  RETURN QUERY SELECT new_id, saga_key, true;
END $$;

COMMENT ON FUNCTION oncebox.start_saga(type text, business_id text, data jsonb, version integer) IS 'Start a saga of a file in this transaction: it exists, and its first commands are sent, when this commits. Once for each business id: with the same data it returns the one that is there, and is_new is false. version: that of the file, NULL for the newest. Error OB015 when no file of the type is applied, OB016 when the business id began with other data or was used before.';

CREATE FUNCTION oncebox.step_key(key text, step text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
  IF step COLLATE "C" !~ '^[a-z0-9][a-z0-9._-]*$' OR step = 'undo' OR starts_with(step, 'oncebox-') THEN
    RAISE EXCEPTION 'step "%" does not match [a-z0-9][a-z0-9._-]{0,63}, or is reserved: "undo", and what begins with "oncebox-"', step
      USING ERRCODE = 'OB002';
  END IF;
  PERFORM "oncebox".check_key(key || ':' || step);
  RETURN key || ':' || step;
END $_$;

COMMENT ON FUNCTION oncebox.step_key(key text, step text) IS 'The key of one step below this key: KEY:STEP, of letters in lower case, digits, ".", "_" and "-".';

CREATE FUNCTION oncebox.stop_canary(canary bigint, by text, note text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  rest integer;
BEGIN
  UPDATE "oncebox".canary AS k
  SET state = 'stopped', reason = format('%s stopped it', coalesce(stop_canary.by, session_user)), ended_at = clock_timestamp()
  WHERE k.id = stop_canary.canary AND k.state IN ('running', 'failed')
  RETURNING k.selected - k.good - k.failed - k.skipped INTO rest;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO "oncebox".audit (operator, note, action, messages, reason)
  VALUES (stop_canary.by, stop_canary.note, 'stop-canary', greatest(rest, 1), format('canary %s', stop_canary.canary));
  RETURN true;
END $$;

COMMENT ON FUNCTION oncebox.stop_canary(canary bigint, by text, note text) IS 'For operators: stops a canary; one that stopped by itself is in no status any more. False when it is neither.';

CREATE FUNCTION oncebox.stop_line() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  retried record;
BEGIN
  IF NEW.stream IS NOT NULL
     AND (SELECT s.behind_max FROM "oncebox".inbox_scope AS s WHERE s.scope = NEW.scope) IS NOT NULL THEN
    NEW.ordering_key := "oncebox".line_of(NEW.headers);
  END IF;
  DELETE FROM "oncebox".inbox_behind AS b
  WHERE b.scope = NEW.scope AND b.stream = NEW.stream AND b.stream_sequence = NEW.stream_sequence AND b.stored_at = NEW.stored_at
  RETURNING b.id, b.ordering_key INTO retried;
  IF FOUND THEN
    NEW.id := retried.id;
    NEW.ordering_key := retried.ordering_key;
  END IF;
  RETURN NEW;
END $$;

CREATE FUNCTION oncebox.stream_time(created text) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (EXTRACT(epoch FROM (created)::timestamp with time zone))::text;

CREATE FUNCTION oncebox.stuck_event() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  PERFORM "oncebox".send_event(
    'stuck',
    NULL,
    jsonb_build_object('saga', NEW.id, 'type', NEW.type, 'business_id', NEW.business_id,
                       'state', NEW.state, 'reason', NEW.reason)
  );
  RETURN NULL;
END $$;

CREATE FUNCTION oncebox.subject_shape(pattern text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (SELECT (('^'::text || string_agg(CASE t.token WHEN '*'::text THEN '[^.]+'::text WHEN '>'::text THEN '.+'::text ELSE regexp_replace(t.token, '[^[:alnum:]_-]'::text, '\\\&'::text, 'g'::text) END, '\.'::text ORDER BY t.place)) || '$'::text) FROM string_to_table(subject_shape.pattern, '.'::text) WITH ORDINALITY t(token, place));

CREATE FUNCTION oncebox.sweep_barrier(barrier text, keep interval, most integer) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH old AS (
    SELECT b.barrier, b.tenant, b.key
    FROM "oncebox".barrier AS b
    WHERE b.barrier = $1 AND b.changed_at < clock_timestamp() - greatest(least($2, make_interval(secs => "oncebox".retention_max())), interval '0') AND b.state NOT IN ('acting', 'undoing')
    ORDER BY b.changed_at
    LIMIT least($3, 10000)
    FOR UPDATE SKIP LOCKED
  ),
  deleted AS (
    DELETE FROM "oncebox".barrier AS b
    USING old AS o
    WHERE b.barrier = o.barrier AND b.tenant = o.tenant AND b.key = o.key
    RETURNING b.key
  )
  SELECT count(*) FROM deleted
$_$;

COMMENT ON FUNCTION oncebox.sweep_barrier(barrier text, keep interval, most integer) IS 'Deletes rows of a barrier that have ended longer ago than this; 10000 at most. Rows under way stay.';

CREATE TABLE oncebox.dead_letter (
    id bigint NOT NULL,
    scope text NOT NULL COLLATE pg_catalog."C",
    tenant text NOT NULL,
    key text COLLATE pg_catalog."C",
    subject text NOT NULL,
    headers jsonb NOT NULL,
    payload bytea NOT NULL,
    stream text COLLATE pg_catalog."C",
    stream_sequence bigint,
    stored_at timestamp with time zone,
    deliveries bigint NOT NULL,
    reason text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    fingerprint bytea,
    ordering_key text COLLATE pg_catalog."C",
    CONSTRAINT dead_letter_origin CHECK ((((stream IS NULL) = (stream_sequence IS NULL)) AND ((stream IS NULL) = (stored_at IS NULL)))),
    CONSTRAINT dead_letter_reason_size CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 1000)))
);

COMMENT ON TABLE oncebox.dead_letter IS 'Messages that a consumer gave up on, whole, with the reason.';

COMMENT ON COLUMN oncebox.dead_letter.key IS 'NULL when the message has no valid key.';

COMMENT ON COLUMN oncebox.dead_letter.stored_at IS 'When the stream stored the message: a recreated stream counts its sequence from 1 again.';

COMMENT ON COLUMN oncebox.dead_letter.fingerprint IS 'That of the key, for a payload that stays in the Object Store, where the headers say; NULL when the payload is here.';

COMMENT ON COLUMN oncebox.dead_letter.ordering_key IS 'The ordering key of the messages that wait for this one; NULL if none ever wait.';

CREATE TABLE oncebox.inbox (
    scope character varying(255) NOT NULL COLLATE pg_catalog."C",
    tenant character varying(255) NOT NULL COLLATE pg_catalog."C",
    key character varying(255) NOT NULL COLLATE pg_catalog."C",
    fingerprint bytea NOT NULL,
    status text NOT NULL,
    outcome bytea,
    message_id bigint,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON TABLE oncebox.inbox IS 'Consumed keys. A committed row means that the key was handled; status says how it ended.';

COMMENT ON COLUMN oncebox.inbox.outcome IS 'The reply as JSON (completed, rejected; NULL stands for null), or the reason as text (dead).';

CREATE TABLE oncebox.inbox_claim (
    scope character varying(255) NOT NULL COLLATE pg_catalog."C",
    tenant character varying(255) NOT NULL COLLATE pg_catalog."C",
    key character varying(255) NOT NULL COLLATE pg_catalog."C",
    fingerprint bytea NOT NULL,
    message_id bigint,
    owner uuid NOT NULL,
    epoch bigint DEFAULT 1 NOT NULL,
    state text DEFAULT 'running'::text NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    attempts integer DEFAULT 1 NOT NULL,
    taken_over boolean DEFAULT false NOT NULL,
    reason text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT inbox_claim_bounds CHECK (((epoch >= 1) AND (attempts >= 0))),
    CONSTRAINT inbox_claim_reason CHECK (((state = 'running'::text) = (reason IS NULL))),
    CONSTRAINT inbox_claim_reason_size CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 1000))),
    CONSTRAINT inbox_claim_state CHECK ((state = ANY (ARRAY['running'::text, 'failed'::text, 'unknown'::text])))
)
WITH (fillfactor='70');

COMMENT ON TABLE oncebox.inbox_claim IS 'Claims of leased mode that are in progress. When one ends, its row is replaced by one of inbox in the same transaction.';

COMMENT ON COLUMN oncebox.inbox_claim.epoch IS 'Counts the owners. Each write of an owner is checked against owner and epoch.';

COMMENT ON COLUMN oncebox.inbox_claim.state IS 'running: an owner works on it; failed: no effect, to be repeated; unknown: an effect may have happened, to be reconciled.';

COMMENT ON COLUMN oncebox.inbox_claim.lease_until IS 'No other process may claim the key before, by the database''s clock: the end of the lease, or of the pause after a failure.';

COMMENT ON COLUMN oncebox.inbox_claim.taken_over IS 'The owner took the claim from another whose lease had ended.';

CREATE TABLE oncebox.inbox_scope (
    scope text NOT NULL COLLATE pg_catalog."C",
    retention_seconds double precision,
    registered_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    kind text DEFAULT 'consumer'::text NOT NULL,
    dead_letter_seconds double precision,
    mode text,
    behind_max integer,
    CONSTRAINT inbox_scope_behind CHECK (((behind_max >= 1) AND (behind_max <= 100000))),
    CONSTRAINT inbox_scope_dead_letters CHECK (((dead_letter_seconds > (0)::double precision) AND (dead_letter_seconds <= ('3162240000'::bigint)::double precision))),
    CONSTRAINT inbox_scope_kind CHECK ((kind = ANY (ARRAY['consumer'::text, 'http'::text]))),
    CONSTRAINT inbox_scope_mode CHECK ((mode = ANY (ARRAY['transaction'::text, 'lease'::text]))),
    CONSTRAINT inbox_scope_retention CHECK (((retention_seconds > (0)::double precision) AND (retention_seconds <= ('3162240000'::bigint)::double precision)))
);

COMMENT ON TABLE oncebox.inbox_scope IS 'The consumers and the HTTP routes of this database, as their processes registered them when they started.';

COMMENT ON COLUMN oncebox.inbox_scope.retention_seconds IS 'How long a key is kept at least; NULL is for ever.';

COMMENT ON COLUMN oncebox.inbox_scope.kind IS 'consumer: of messages; http: a route, whose keys are repeated by clients, not by a stream.';

COMMENT ON COLUMN oncebox.inbox_scope.dead_letter_seconds IS 'How long a dead letter is kept at least, and never shorter than a key; NULL is for ever.';

COMMENT ON COLUMN oncebox.inbox_scope.mode IS 'transaction: keys are claimed in the handler''s transaction; lease: before it, under a lease. A process of the other mode is refused; see change_inbox_mode.';

COMMENT ON COLUMN oncebox.inbox_scope.behind_max IS 'How many messages of one ordering key may wait for its dead letter; NULL: they overtake it. The consumer that started last has set it.';

CREATE FUNCTION oncebox.sweep_basis() RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN concat_ws(' '::text, (SELECT c.system_identifier FROM pg_control_system() c(pg_control_version, catalog_version_no, system_identifier, pg_control_last_modified)), pg_relation_filenode('oncebox.inbox'::regclass), pg_relation_filenode('oncebox.dead_letter'::regclass), pg_relation_filenode('oncebox.inbox_claim'::regclass), (SELECT md5(string_agg(concat_ws(' '::text, s.scope, COALESCE(s.retention_seconds, (0)::double precision), s.dead_letter_seconds), ', '::text ORDER BY s.scope)) AS md5 FROM oncebox.inbox_scope s));

CREATE FUNCTION oncebox.sweep_due(first_block bigint, end_block bigint) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  first_row CONSTANT tid := format('(%s,0)', first_block);
  end_row CONSTANT tid := format('(%s,0)', end_block);
BEGIN
  RETURN (
    SELECT min(r.oldest + make_interval(secs => CASE
             WHEN r.is_letter THEN greatest(s.dead_letter_seconds, s.retention_seconds)
             ELSE s.retention_seconds
           END))
    FROM (
      SELECT i.scope, min(i.created_at) AS oldest, false AS is_letter
      FROM "oncebox".inbox AS i
      WHERE i.ctid >= first_row AND i.ctid < end_row
      GROUP BY i.scope
      UNION ALL
      SELECT l.scope, min(l.created_at), true
      FROM "oncebox".dead_letter AS l
      WHERE l.ctid >= first_row AND l.ctid < end_row
      GROUP BY l.scope
      UNION ALL
      SELECT c.scope, min(c.lease_until), false
      FROM "oncebox".inbox_claim AS c
      WHERE c.ctid >= first_row AND c.ctid < end_row
      GROUP BY c.scope
    ) AS r
    JOIN "oncebox".inbox_scope AS s ON s.scope = r.scope
    WHERE s.retention_seconds IS NOT NULL AND (NOT r.is_letter OR s.dead_letter_seconds IS NOT NULL)
  );
END $$;

CREATE FUNCTION oncebox.sweep_inbox(first_block bigint, end_block bigint, only_count boolean, OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  first_row CONSTANT tid := format('(%s,0)', first_block);
  end_row CONSTANT tid := format('(%s,0)', end_block);
  moment CONSTANT timestamptz := statement_timestamp();
  unknown_of_keys bigint;
  unknown_of_letters bigint;
BEGIN
  IF only_count THEN
    SELECT count(*) INTO keys
    FROM "oncebox".inbox AS i
    JOIN "oncebox".inbox_scope AS s ON s.scope = i.scope
    WHERE i.ctid >= first_row AND i.ctid < end_row
      AND i.created_at < moment - make_interval(secs => s.retention_seconds);
    SELECT count(*) INTO dead_letters
    FROM "oncebox".dead_letter AS l
    JOIN "oncebox".inbox_scope AS s ON s.scope = l.scope
    WHERE l.ctid >= first_row AND l.ctid < end_row
      AND l.created_at < moment - make_interval(secs => s.dead_letter_seconds)
      AND l.created_at < moment - make_interval(secs => s.retention_seconds);
    SELECT count(*), count(e.step) INTO claims, unknown_effects
    FROM "oncebox".inbox_claim AS c
    JOIN "oncebox".inbox_scope AS s ON s.scope = c.scope
    LEFT JOIN LATERAL (
      SELECT f.step
      FROM "oncebox".inbox_effect AS f
      WHERE f.scope = c.scope AND f.tenant = c.tenant AND f.key = c.key AND f.state = 'started'
      LIMIT 1
    ) AS e ON true
    WHERE c.ctid >= first_row AND c.ctid < end_row
      AND c.lease_until < moment - make_interval(secs => s.retention_seconds);
    RETURN;
  END IF;

  WITH old AS MATERIALIZED (
    SELECT i.ctid
    FROM "oncebox".inbox AS i
    WHERE i.ctid >= first_row AND i.ctid < end_row
      AND i.created_at < moment - (
            SELECT make_interval(secs => s.retention_seconds)
            FROM "oncebox".inbox_scope AS s
            WHERE s.scope = i.scope
          )
    FOR UPDATE OF i SKIP LOCKED
  ),
  deleted AS (
    DELETE FROM "oncebox".inbox
    WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM old AS o))
    RETURNING scope, tenant, key, status
  ),
  forgotten AS (
    DELETE FROM "oncebox".inbox_effect AS e
    USING deleted AS d
    WHERE d.status = 'dead'
      AND e.scope = d.scope AND e.tenant = d.tenant AND e.key = d.key
      AND NOT EXISTS (
        SELECT FROM "oncebox".dead_letter AS l
        WHERE l.scope = d.scope AND l.tenant = d.tenant AND l.key = d.key
      )
      AND NOT EXISTS (
        SELECT FROM "oncebox".inbox_claim AS c
        WHERE c.scope = d.scope AND c.tenant = d.tenant AND c.key = d.key
      )
    RETURNING e.state
  )
  SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM forgotten AS f WHERE f.state = 'started')
  INTO keys, unknown_of_keys;

  WITH old AS MATERIALIZED (
    SELECT l.ctid
    FROM "oncebox".dead_letter AS l
    WHERE l.ctid >= first_row AND l.ctid < end_row
      AND l.created_at < moment - (
            SELECT CASE
                     WHEN s.dead_letter_seconds IS NOT NULL AND s.retention_seconds IS NOT NULL
                     THEN make_interval(secs => greatest(s.dead_letter_seconds, s.retention_seconds))
                   END
            FROM "oncebox".inbox_scope AS s
            WHERE s.scope = l.scope
          )
    FOR UPDATE OF l SKIP LOCKED
  ),
  deleted AS (
    DELETE FROM "oncebox".dead_letter
    WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM old AS o))
    RETURNING id, scope, tenant, key
  ),
  forgotten AS (
    DELETE FROM "oncebox".inbox_effect AS e
    USING deleted AS d
    WHERE e.scope = d.scope AND e.tenant = d.tenant AND e.key = d.key
      AND NOT EXISTS (
        SELECT FROM "oncebox".dead_letter AS l
        WHERE l.scope = d.scope AND l.tenant = d.tenant AND l.key = d.key
          AND NOT EXISTS (SELECT FROM deleted AS o WHERE o.id = l.id)
      )
      AND NOT EXISTS (
        SELECT FROM "oncebox".inbox AS i
        WHERE i.scope = d.scope AND i.tenant = d.tenant AND i.key = d.key AND i.status = 'dead'
      )
      AND NOT EXISTS (
        SELECT FROM "oncebox".inbox_claim AS c
        WHERE c.scope = d.scope AND c.tenant = d.tenant AND c.key = d.key
      )
    RETURNING e.state
  )
  SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM forgotten AS f WHERE f.state = 'started')
  INTO dead_letters, unknown_of_letters;

  WITH old AS MATERIALIZED (
    SELECT c.scope, c.tenant, c.key
    FROM "oncebox".inbox_claim AS c
    WHERE c.ctid >= first_row AND c.ctid < end_row
      AND c.lease_until < moment - (
            SELECT make_interval(secs => s.retention_seconds)
            FROM "oncebox".inbox_scope AS s
            WHERE s.scope = c.scope
          )
    FOR UPDATE OF c SKIP LOCKED
  ),
  deleted AS (
    DELETE FROM "oncebox".inbox_claim AS c
    USING old AS o
    WHERE c.scope = o.scope AND c.tenant = o.tenant AND c.key = o.key
    RETURNING c.scope, c.tenant, c.key
  ),
  forgotten AS (
    DELETE FROM "oncebox".inbox_effect AS e
    USING deleted AS d
    WHERE e.scope = d.scope AND e.tenant = d.tenant AND e.key = d.key
    RETURNING e.state
  )
  SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM forgotten AS f WHERE f.state = 'started')
  INTO claims, unknown_effects;
  unknown_effects := unknown_effects + unknown_of_keys + unknown_of_letters;
END $$;

COMMENT ON FUNCTION oncebox.sweep_inbox(first_block bigint, end_block bigint, only_count boolean, OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint) IS 'Deletes, or only counts, rows older than the retentions of inbox_scope in a range of blocks of inbox, dead_letter and inbox_claim. unknown_effects: effects outside the database whose outcome is unknown.';

CREATE FUNCTION oncebox.sweep_inboxes(OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint, OUT is_last boolean) RETURNS SETOF record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  moment CONSTANT timestamptz := clock_timestamp();
  shortest CONSTANT interval := (SELECT make_interval(secs => min(s.retention_seconds)) FROM "oncebox".inbox_scope AS s);
  sweep "oncebox".inbox_sweep;
  blocks CONSTANT bigint := greatest(pg_relation_size('"oncebox".inbox'), pg_relation_size('"oncebox".dead_letter'),
                                     pg_relation_size('"oncebox".inbox_claim')) / current_setting('block_size')::bigint;
  this_block bigint;
BEGIN
  PERFORM "oncebox".forget_kept();
  IF shortest IS NULL THEN
    RETURN;
  END IF;
  SELECT w.* INTO sweep
  FROM "oncebox".inbox_sweep AS w
  WHERE w.next_block > 0
    OR w.finished_at IS NULL
    OR w.finished_at > moment
    OR w.finished_at < moment - greatest(interval '1 second', least(interval '1 hour', shortest / 64))
  FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  PERFORM set_config('idle_in_transaction_session_timeout', '60s', true);

  IF sweep.next_block = 0 AND sweep.basis <> "oncebox".sweep_basis() THEN
    DELETE FROM "oncebox".inbox_sweep_range;
    UPDATE "oncebox".inbox_sweep SET basis = "oncebox".sweep_basis();
  END IF;
  this_block := coalesce(
    (SELECT min(r.first_block) FROM "oncebox".inbox_sweep_range AS r
     WHERE r.first_block >= sweep.next_block AND NOT r.due_at BETWEEN moment AND moment + shortest),
    (SELECT max(r.first_block) + 128 FROM "oncebox".inbox_sweep_range AS r),
    0
  );
  is_last := this_block >= blocks;
  IF is_last THEN
    DELETE FROM "oncebox".inbox_sweep_range AS r WHERE r.first_block >= blocks;
    UPDATE "oncebox".inbox_sweep SET next_block = 0, finished_at = clock_timestamp();
    keys := 0; dead_letters := 0; claims := 0; unknown_effects := 0;
    RETURN NEXT;
    RETURN;
  END IF;
  SELECT d.* INTO keys, dead_letters, claims, unknown_effects
  FROM "oncebox".sweep_inbox(this_block, this_block + 128, false) AS d;
  INSERT INTO "oncebox".inbox_sweep_range AS r (first_block, due_at)
  VALUES (this_block, least("oncebox".sweep_due(this_block, this_block + 128), moment + shortest))
  ON CONFLICT ON CONSTRAINT inbox_sweep_range_pkey DO UPDATE SET due_at = excluded.due_at;
  UPDATE "oncebox".inbox_sweep SET next_block = this_block + 128;
  RETURN NEXT;
END $$;

COMMENT ON FUNCTION oncebox.sweep_inboxes(OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint, OUT is_last boolean) IS 'For consumers: one step in deleting rows older than the retentions of inbox_scope. No row when nothing is to be done.';

CREATE FUNCTION oncebox.sweep_sagas(keep interval, most integer) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH old AS (
    SELECT s.id
    FROM "oncebox".saga AS s
    WHERE s.finished_at < clock_timestamp() - greatest(least($1, make_interval(secs => "oncebox".retention_max())), interval '0')
    ORDER BY s.finished_at
    LIMIT least($2, 10000)
    FOR UPDATE SKIP LOCKED
  ),
  deleted AS (
    DELETE FROM "oncebox".saga AS s
    USING old AS o
    WHERE s.id = o.id
    RETURNING s.id
  )
  SELECT count(*) FROM deleted
$_$;

COMMENT ON FUNCTION oncebox.sweep_sagas(keep interval, most integer) IS 'Deletes sagas that finished longer ago than this, with their steps; 10000 at most. Their business ids are free again.';

CREATE FUNCTION oncebox.take_canary_step(canary bigint, OUT moved boolean, OUT letter bigint, OUT outbox text, OUT key text, OUT subject text, OUT headers text, OUT payload bytea, OUT number bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  c "oncebox".canary;
  r "oncebox".canary_row;
  is_retried boolean;
BEGIN
  moved := false;
  SELECT k.* INTO c FROM "oncebox".canary AS k WHERE k.id = take_canary_step.canary AND k.state = 'running' FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  SELECT w.* INTO r FROM "oncebox".canary_row AS w WHERE w.canary = c.id AND w.state = 'waiting' ORDER BY w.place LIMIT 1;
  IF c.room % 10 = 0 OR r.id IS NULL THEN
    c := "oncebox".judge_canary(c);
  END IF;
  IF c.state = 'running' AND c.fault_since < clock_timestamp() - make_interval(secs => c.watch_seconds) THEN
    c.state := 'failed';
    c.reason := format('it could not be retried: %s: %s', "oncebox".canary_row_name(r), c.fault);
  END IF;
  IF c.state = 'running' AND r.id IS NULL AND c.watched = 0 THEN
    c.state := 'done';
  END IF;
  IF c.state = 'running' AND c.room = 0 AND c.watched <= (CASE WHEN c.step < 4 THEN 0 ELSE 900 END) THEN
    c.step := least(c.step + 1, 4);
    c.room := CASE c.step WHEN 2 THEN 10 ELSE 100 END;
  END IF;
  IF c.state = 'running' AND c.room > 0 AND r.id IS NOT NULL THEN
    SELECT t.is_retried, t.outbox, t.key, t.subject, t.headers, t.payload, t.number
    INTO is_retried, outbox, key, subject, headers, payload, number
    FROM "oncebox".retry_canary_row(c, r) AS t;
    moved := true;
    letter := CASE WHEN subject IS NOT NULL THEN r.id END;
    IF is_retried THEN
      c.watched := c.watched + 1;
      c.room := c.room - 1;
      c.fault := NULL;
      c.fault_since := NULL;
    ELSE
      c.skipped := c.skipped + 1;
    END IF;
  END IF;
  UPDATE "oncebox".canary AS k
  SET
    (state, step, room, watched, good, failed, skipped, reason, fault, fault_since) =
      (c.state, c.step, c.room, c.watched, c.good, c.failed, c.skipped, c.reason, c.fault, c.fault_since),
    ended_at = CASE WHEN c.state <> 'running' THEN clock_timestamp() END
  WHERE k.id = c.id
    AND (k.state, k.step, k.room, k.watched, k.good, k.failed, k.skipped, k.fault_since)
      IS DISTINCT FROM (c.state, c.step, c.room, c.watched, c.good, c.failed, c.skipped, c.fault_since);
END $$;

COMMENT ON FUNCTION oncebox.take_canary_step(canary bigint, OUT moved boolean, OUT letter bigint, OUT outbox text, OUT key text, OUT subject text, OUT headers text, OUT payload bytea, OUT number bigint) IS 'For relays: judges the retried rows of a canary, and retries its next row. With a letter, publish it and then commit. moved: there may be more to do at once.';

CREATE FUNCTION oncebox.take_claims_before(scope text, tenant text, key text, owner uuid) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  has_owner boolean;
BEGIN
  INSERT INTO "oncebox".inbox_claim AS c (scope, tenant, key, fingerprint, owner, lease_until)
  SELECT $1, $2, b.key, '', $4, '-infinity'
  FROM "oncebox".before_edit($3) AS b (key)
  ORDER BY b.key
  ON CONFLICT ON CONSTRAINT inbox_claim_pkey DO UPDATE SET lease_until = c.lease_until;
  has_owner := EXISTS (
    SELECT
    FROM "oncebox".inbox_claim AS c
    WHERE c.scope = $1 AND c.tenant = $2 AND c.key IN (SELECT "oncebox".before_edit($3))
      AND c.lease_until > clock_timestamp() AND c.state <> 'failed'
  );
  DELETE FROM "oncebox".inbox_claim AS c
  WHERE c.scope = $1 AND c.tenant = $2 AND c.key IN (SELECT "oncebox".before_edit($3))
    AND (c.lease_until = '-infinity' OR NOT has_owner);
  UPDATE "oncebox".inbox_effect AS e
  SET epoch = 0
  WHERE NOT has_owner AND e.scope = $1 AND e.tenant = $2 AND e.key IN (SELECT "oncebox".before_edit($3));
  RETURN NOT has_owner;
END $_$;

CREATE FUNCTION oncebox.time_text(seconds double precision) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN COALESCE(NULLIF(concat_ws(' '::text, (NULLIF(((round(seconds))::bigint / 86400), 0) || 'd'::text), (NULLIF((((round(seconds))::bigint % (86400)::bigint) / 3600), 0) || 'h'::text), (NULLIF((((round(seconds))::bigint % (3600)::bigint) / 60), 0) || 'm'::text), (NULLIF(((round(seconds))::bigint % (60)::bigint), 0) || 's'::text)), ''::text), '0s'::text);

CREATE FUNCTION oncebox.turn_of(part oid) RETURNS bigint
    LANGUAGE sql STABLE
    AS $_$
  SELECT s.turn FROM "oncebox".segment AS s WHERE to_regclass(format('"oncebox".message_%s', s.number)) = $1
$_$;

CREATE FUNCTION oncebox.undo_discard(audit bigint, by text, note text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  ids bigint[];
  blocked bigint;
  first text;
  k "oncebox".kept;
  letter "oncebox".dead_letter;
  m "oncebox".parked;
BEGIN
  PERFORM FROM "oncebox".maintenance FOR UPDATE;
  PERFORM FROM "oncebox".lane AS l
  WHERE l.lane IN (
    SELECT a.lane
    FROM "oncebox".audit AS chosen
    JOIN "oncebox".audit AS a ON a.command = chosen.command AND a.action IN ('discard', 'edit')
    WHERE chosen.id = $1
  )
  ORDER BY l.lane
  FOR UPDATE;
  PERFORM FROM "oncebox".kept AS l
  WHERE l.audit IN (
    SELECT a.id
    FROM "oncebox".audit AS chosen
    JOIN "oncebox".audit AS a ON a.command = chosen.command AND a.action IN ('discard', 'edit')
    WHERE chosen.id = $1
  )
  ORDER BY l.audit
  FOR UPDATE;
  SELECT array_agg(r.audit_id ORDER BY r.audit_id), count(r.obstacle),
         min(format('message %s, key %s: %s', r.message_id, coalesce(r.key, 'none'), r.obstacle)) FILTER (WHERE r.obstacle IS NOT NULL)
  INTO ids, blocked, first
  FROM "oncebox".undo_rows($1) AS r;
  IF ids IS NULL THEN
    RAISE EXCEPTION 'row % of the audit is no discard and no edit', $1
      USING ERRCODE = 'OB011', HINT = 'Only a discard or an edit can be taken back; the audit has its id.';
  END IF;
  IF blocked > 0 THEN
    RAISE EXCEPTION '% of % rows cannot come back, so none did. %', blocked, cardinality(ids), first
      USING ERRCODE = 'OB011', HINT = format('See each row: oncebox undo %s --dry-run', $1);
  END IF;
  FOR k IN SELECT l.* FROM "oncebox".kept AS l WHERE l.audit = ANY (ids) ORDER BY l.id LOOP
    IF k.origin = 'dead_letter' THEN
      letter := jsonb_populate_record(NULL::"oncebox".dead_letter, k.columns);
      letter.payload := k.payload;
      INSERT INTO "oncebox".dead_letter OVERRIDING SYSTEM VALUE SELECT letter.*;
    ELSE
      m := jsonb_populate_record(NULL::"oncebox".parked, k.columns);
      m.payload := k.payload;
      m.waits_for := NULL;
      IF k.origin = 'edited' THEN
        DELETE FROM "oncebox".parked AS p WHERE p.lane = m.lane AND p.id = m.id;
        PERFORM "oncebox".rewrite_message(m.lane, m.id, m.key, m.headers, m.payload);
      END IF;
      m.next_attempt_at := CASE WHEN m.dead_at IS NULL AND NOT EXISTS (
        SELECT
        FROM "oncebox".parked AS p
        WHERE p.lane = m.lane AND p.ordering_key = m.ordering_key AND p.dead_at IS NULL AND p.id < m.id
      ) THEN clock_timestamp() END;
      INSERT INTO "oncebox".parked SELECT m.*;
      DELETE FROM "oncebox".discarded AS d WHERE d.lane = k.lane AND d.id = k.id;
    END IF;
  END LOOP;
  DELETE FROM "oncebox".kept AS l WHERE l.audit = ANY (ids);
  RETURN QUERY
  INSERT INTO "oncebox".audit (operator, note, action, lane, message_id, key, subject, reason, scope, undoes)
  SELECT $2, $3, 'undo', a.lane, a.message_id, a.key, a.subject, a.reason, a.scope, a.id
  FROM "oncebox".audit AS a
  WHERE a.id = ANY (ids)
  ORDER BY a.id
  RETURNING audit.message_id;
END $_$;

COMMENT ON FUNCTION oncebox.undo_discard(audit bigint, by text, note text) IS 'For operators: brings back all rows of the discard, or edit, with this row in the audit, or none. Returns the ids of the messages and letters.';

CREATE FUNCTION oncebox.undo_key(key text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  PERFORM "oncebox".check_key(key || ':undo');
  RETURN key || ':undo';
END $$;

COMMENT ON FUNCTION oncebox.undo_key(key text) IS 'The key of the compensation of a step: KEY:undo.';

CREATE FUNCTION oncebox.undo_rows(audit bigint) RETURNS TABLE(audit_id bigint, origin text, message_id bigint, scope text, key text, subject text, reason text, obstacle text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT a.id, k.origin, a.message_id, a.scope, a.key, a.subject, a.reason,
    CASE
      WHEN u.id IS NOT NULL THEN format('%s brought it back at %s UTC', coalesce(u.operator, u.database_user),
        to_char(u.happened_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'))
      WHEN a.action = 'edit' AND a.scope IS NOT NULL THEN 'the edited letter was sent, or given to its consumer, at once'
      WHEN k.audit IS NULL OR k.kept_at < clock_timestamp() - "oncebox".kept_for()
        THEN 'it is not kept: it is kept for a day, and of several the newest 100,000 rows of at most 1 GiB'
      WHEN k.origin = 'dead_letter' THEN "oncebox".letter_obstacle(k)
      ELSE "oncebox".message_obstacle(k, a.command)
    END
  FROM "oncebox".audit AS chosen
  JOIN "oncebox".audit AS a ON a.command = chosen.command AND a.action IN ('discard', 'edit')
  LEFT JOIN "oncebox".kept AS k ON k.audit = a.id
  LEFT JOIN "oncebox".audit AS u ON u.undoes = a.id
  WHERE chosen.id = $1 AND chosen.action IN ('discard', 'edit')
  ORDER BY a.id
$_$;

COMMENT ON FUNCTION oncebox.undo_rows(audit bigint) IS 'For operators: the rows that the discard, or edit, with this row in the audit took out, and why one of them cannot come back.';

CREATE FUNCTION oncebox.unhandled_max() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 10000;

CREATE FUNCTION oncebox.wait_in_line(scope text, key text, payload bytea, subject text, headers jsonb, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  line text := "oncebox".line_of(wait_in_line.headers);
  settings record;
  waiting bigint;
BEGIN
  SELECT s.behind_max, s.retention_seconds INTO settings FROM "oncebox".inbox_scope AS s WHERE s.scope = wait_in_line.scope;
  IF line IS NULL OR settings.behind_max IS NULL THEN
    RETURN 'free';
  END IF;
  PERFORM "oncebox".check_inbox_names(wait_in_line.scope, wait_in_line.tenant), "oncebox".check_key(wait_in_line.key),
          "oncebox".check_stored_at(wait_in_line.stored_at);
  FOR attempt IN 1 .. 5 LOOP
    IF NOT EXISTS (SELECT FROM "oncebox".dead_letter AS d WHERE d.scope = wait_in_line.scope AND d.ordering_key = line)
       AND NOT EXISTS (SELECT FROM "oncebox".inbox_behind AS b WHERE b.scope = wait_in_line.scope AND b.ordering_key = line)
       OR EXISTS (
         SELECT FROM "oncebox".inbox AS i
         WHERE i.scope = wait_in_line.scope AND i.tenant = wait_in_line.tenant AND i.key = wait_in_line.key
           AND NOT coalesce(i.created_at < statement_timestamp() - make_interval(secs => settings.retention_seconds), false)
       ) THEN
      RETURN 'free';
    END IF;
    -- The last of the line, or else its dead letter, stays until this message is written.
    PERFORM FROM "oncebox".inbox_behind AS b
    WHERE b.scope = wait_in_line.scope AND b.ordering_key = line ORDER BY b.id DESC LIMIT 1 FOR SHARE;
    IF NOT FOUND THEN
      PERFORM FROM "oncebox".dead_letter AS d
      WHERE d.scope = wait_in_line.scope AND d.ordering_key = line ORDER BY d.id DESC LIMIT 1 FOR SHARE;
    END IF;
    CONTINUE WHEN NOT FOUND;
    IF EXISTS (
      SELECT FROM "oncebox".inbox_behind AS b
      WHERE b.scope = wait_in_line.scope AND b.stream = wait_in_line.stream
        AND b.stream_sequence = wait_in_line.stream_sequence AND b.stored_at = wait_in_line.stored_at
    ) OR EXISTS (
      SELECT FROM "oncebox".dead_letter AS d
      WHERE d.scope = wait_in_line.scope AND d.stream = wait_in_line.stream
        AND d.stream_sequence = wait_in_line.stream_sequence AND d.stored_at = wait_in_line.stored_at
    ) THEN
      RETURN 'behind';
    END IF;
    SELECT count(*) INTO waiting
    FROM (
      SELECT FROM "oncebox".inbox_behind AS b
      WHERE b.scope = wait_in_line.scope AND b.ordering_key = line
      LIMIT settings.behind_max
    ) AS b;
    IF waiting >= settings.behind_max THEN
      RETURN 'full';
    END IF;
    INSERT INTO "oncebox".inbox_behind
      (id, scope, tenant, key, ordering_key, subject, headers, payload, stream, stream_sequence, stored_at)
    VALUES (nextval('"oncebox".dead_letter_id_seq'), wait_in_line.scope, wait_in_line.tenant, wait_in_line.key, line,
            wait_in_line.subject, wait_in_line.headers,
            CASE WHEN "oncebox".is_in_store(wait_in_line.headers, wait_in_line.payload) THEN '' ELSE wait_in_line.payload END,
            wait_in_line.stream, wait_in_line.stream_sequence, wait_in_line.stored_at)
    ON CONFLICT ON CONSTRAINT inbox_behind_once DO NOTHING;
    RETURN 'behind';
  END LOOP;
  -- Others change the line at this moment.
  RETURN 'full';
END $$;

COMMENT ON FUNCTION oncebox.wait_in_line(scope text, key text, payload bytea, subject text, headers jsonb, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone) IS 'Asked before the claim of a message with an ordering key, while lines of the scope are stopped: free (claim it), behind (it waits in the database until a dead letter is retried or discarded: acknowledge it), full (too many wait there: it stays in the stream, ask again later, and let no other of its ordering key pass).';

CREATE FUNCTION oncebox.wake_relay() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  PERFORM setval('"oncebox".relay_asleep', 0);
  IF current_setting('max_prepared_transactions') = '0' AND pg_notification_queue_usage() < 0.5 THEN
    PERFORM pg_notify('oncebox', '');
  END IF;
END $$;

CREATE FUNCTION oncebox.write_saga(type text, business_id text, key text, version integer, fingerprint text, data text, late_in double precision, due_in double precision, scope text, began_with bytea, steps text[], states text[], attempts integer[], undo_attempts integer[], in_doubt boolean[], subjects text[], payloads bytea[], undo_subjects text[], undo_payloads bytea[], reasons text[], late_steps_in double precision[]) RETURNS SETOF bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  WITH started AS (
    INSERT INTO "oncebox".saga AS s (type, business_id, key, version, fingerprint, data, began_with, deadline_at, due_at,
                                scope)
    SELECT $1, $2, $3, $4, $5, $6::text::jsonb, $10::bytea,
           clock_timestamp() + make_interval(secs => $7), clock_timestamp() + make_interval(secs => $8), $9
    ON CONFLICT DO NOTHING
    RETURNING s.id
  ),
  sent AS (
    INSERT INTO "oncebox".saga_step (saga_id, step, state, attempt, undo_attempt, in_doubt, subject, payload,
                                    undo_subject, undo_payload, reason, deadline_at, sent_at)
    SELECT s.id, g.step, g.state, g.attempt, g.undo_attempt, g.in_doubt, g.subject, g.payload, g.undo_subject,
           g.undo_payload, left(g.reason, 250), clock_timestamp() + make_interval(secs => g.late_in), clock_timestamp()
    FROM started AS s
    CROSS JOIN unnest($11::text[], $12::text[], $13::integer[], $14::integer[], $15::boolean[], $16::text[], $17::bytea[], $18::text[],
                $19::bytea[], $20::text[], $21::float8[])
      AS g (step, state, attempt, undo_attempt, in_doubt, subject, payload, undo_subject, undo_payload, reason, late_in)
  )
  SELECT s.id FROM started AS s
$_$;

COMMENT ON FUNCTION oncebox.write_saga(type text, business_id text, key text, version integer, fingerprint text, data text, late_in double precision, due_in double precision, scope text, began_with bytea, steps text[], states text[], attempts integer[], undo_attempts integer[], in_doubt boolean[], subjects text[], payloads bytea[], undo_subjects text[], undo_payloads bytea[], reasons text[], late_steps_in double precision[]) IS 'For producers that start sagas, which start.sql of oncebox-saga and start_saga() call: writes a saga and its first steps down, without a right to read or change those of others. Returns its id; no row when its business id has one.';

CREATE FUNCTION oncebox.written_by(row_xmin xid) RETURNS xid8
    LANGUAGE sql
    RETURN ((GREATEST((((pg_current_xact_id())::text)::bigint - age(row_xmin)), (3)::bigint))::text)::xid8;

CREATE TABLE oncebox.audit (
    id bigint NOT NULL,
    happened_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    database_user text DEFAULT SESSION_USER NOT NULL,
    operator text,
    note text,
    action text NOT NULL,
    lane smallint,
    message_id bigint,
    key text COLLATE pg_catalog."C",
    subject text,
    reason text,
    messages bigint DEFAULT 1 NOT NULL,
    scope text,
    command text DEFAULT COALESCE(NULLIF(current_setting('oncebox.command'::text, true), ''::text), ('transaction '::text || pg_current_xact_id())) NOT NULL COLLATE pg_catalog."C",
    undoes bigint,
    CONSTRAINT audit_action CHECK ((action = ANY (ARRAY['retry'::text, 'discard'::text, 'replay'::text, 'prune'::text, 'cancel'::text, 'skip'::text, 'abandon'::text, 'resend'::text, 'bury'::text, 'pause'::text, 'throttle'::text, 'resume'::text, 'enable-events'::text, 'disable-events'::text, 'adopt'::text, 'change-scope'::text, 'expect'::text, 'expect-no-more'::text, 'undo'::text, 'begin-canary'::text, 'stop-canary'::text, 'continue-canary'::text, 'edit'::text]))),
    CONSTRAINT audit_message CHECK (((scope IS NOT NULL) OR (action = 'resend'::text) OR ((key IS NULL) = (action = ANY (ARRAY['prune'::text, 'resend'::text, 'pause'::text, 'throttle'::text, 'resume'::text, 'enable-events'::text, 'disable-events'::text, 'adopt'::text, 'begin-canary'::text, 'stop-canary'::text, 'continue-canary'::text]))))),
    CONSTRAINT audit_messages CHECK (((messages >= 1) OR ((messages = 0) AND (action = 'resend'::text)))),
    CONSTRAINT audit_note_size CHECK (((octet_length(note) >= 1) AND (octet_length(note) <= 1000))),
    CONSTRAINT audit_operator_size CHECK (((octet_length(operator) >= 1) AND (octet_length(operator) <= 255))),
    CONSTRAINT audit_undoes CHECK (((undoes IS NOT NULL) = (action = 'undo'::text)))
);

COMMENT ON TABLE oncebox.audit IS 'The actions of operators: a row for each message and action. Never deleted by Oncebox.';

COMMENT ON COLUMN oncebox.audit.operator IS 'Who it was by their own word (--by); database_user is who the database knows.';

COMMENT ON COLUMN oncebox.audit.reason IS 'Why the message was dead; for a replay the name of the request; of a pause or throttle its kind and value; of an edit the new key, and digests.';

COMMENT ON COLUMN oncebox.audit.scope IS 'Who gave the message up, for a dead letter of an inbox; message_id is the letter''s id then.';

COMMENT ON COLUMN oncebox.audit.command IS 'The same for all rows of one command, or of one transaction that called the functions itself.';

COMMENT ON COLUMN oncebox.audit.undoes IS 'Of undo: the id of the row that it took back.';

ALTER TABLE oncebox.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME oncebox.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE oncebox.barrier (
    barrier text NOT NULL COLLATE pg_catalog."C",
    tenant text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    state text NOT NULL,
    changed_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    attempt integer DEFAULT 1 NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() NOT NULL,
    CONSTRAINT barrier_sizes CHECK ((((octet_length(barrier) >= 1) AND (octet_length(barrier) <= 255)) AND ((octet_length(key) >= 1) AND (octet_length(key) <= 255)) AND (octet_length(tenant) <= 255))),
    CONSTRAINT barrier_state CHECK ((state = ANY (ARRAY['acting'::text, 'acted'::text, 'rejected'::text, 'undoing'::text, 'undone'::text, 'refused'::text])))
);

COMMENT ON TABLE oncebox.barrier IS 'How far each action of a saga came here, so that it and its compensation have the effect of one of them.';

COMMENT ON COLUMN oncebox.barrier.attempt IS 'The newest attempt that was let through, at the action or, from undoing on, at its compensation; an earlier attempt at the action that comes later is refused.';

COMMENT ON COLUMN oncebox.barrier.xact IS 'The transaction that was let through last: only it may say that it had no effect, or has undone nothing, except under a lease.';

ALTER TABLE oncebox.canary ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME oncebox.canary_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE oncebox.consumer_position (
    stream text NOT NULL COLLATE pg_catalog."C",
    durable text NOT NULL COLLATE pg_catalog."C",
    stream_created text NOT NULL,
    next_sequence bigint NOT NULL,
    takeovers integer NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT consumer_position_bounds CHECK (((next_sequence >= 1) AND (takeovers >= 0)))
);

COMMENT ON TABLE oncebox.consumer_position IS 'Where the strictly ordered consumer of a stream was last continued. Written before its JetStream consumer is recreated, so that a crash between the two loses nothing.';

COMMENT ON COLUMN oncebox.consumer_position.takeovers IS 'How many processes took over in a row without getting past next_sequence: counted as deliveries of that message.';

CREATE TABLE oncebox.cursor (
    lane smallint NOT NULL,
    number bigint NOT NULL,
    floor bigint DEFAULT 0 NOT NULL,
    high bigint DEFAULT 0 NOT NULL,
    snap pg_snapshot DEFAULT pg_current_snapshot() NOT NULL,
    target pg_snapshot,
    after bigint,
    reset_until bigint,
    system_identifier bigint NOT NULL,
    settled_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    acknowledged jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT cursor_drain CHECK (((target IS NULL) = (after IS NULL))),
    CONSTRAINT cursor_ids CHECK (((floor >= 0) AND (high >= 0)))
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

COMMENT ON TABLE oncebox.cursor IS 'The cursor of each lane: every message with id <= high that is visible in snap is settled.';

COMMENT ON COLUMN oncebox.cursor.floor IS 'Messages up to here are settled, with any xact.';

COMMENT ON COLUMN oncebox.cursor.target IS 'Set while a large set of late messages is drained in parts: the messages visible here are due; after is the last id sent.';

COMMENT ON COLUMN oncebox.cursor.reset_until IS 'Set while messages of another cluster (a restored dump) are drained: up to this id, xact means nothing here.';

COMMENT ON COLUMN oncebox.cursor.acknowledged IS 'For each stream the highest sequence that acknowledged a message of the lane, and that message''s Nats-Msg-Id: {"ORDERS": [4711, "..."]}.';

ALTER TABLE oncebox.dead_letter ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME oncebox.dead_letter_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE oncebox.delayed (
    id bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL,
    ordering_key text COLLATE pg_catalog."C",
    headers jsonb NOT NULL,
    payload bytea NOT NULL,
    not_before timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT delayed_not_before CHECK (isfinite(not_before))
);

COMMENT ON TABLE oncebox.delayed IS 'Messages that wait for their time. Private: written by enqueue_at(), moved into the log by move_delayed().';

COMMENT ON COLUMN oncebox.delayed.id IS 'That of its placeholder, in lane -1 of the log; in the log the message gets another.';

CREATE TABLE oncebox.delayed_mover (
    only_row boolean DEFAULT true NOT NULL,
    CONSTRAINT delayed_mover_only_row CHECK (only_row)
);

COMMENT ON TABLE oncebox.delayed_mover IS 'One row, locked by the relay that moves delayed messages into the log.';

CREATE SEQUENCE oncebox.turn
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;

CREATE TABLE oncebox.discarded (
    lane smallint NOT NULL,
    id bigint NOT NULL,
    turn bigint DEFAULT pg_sequence_last_value('oncebox.turn'::regclass) NOT NULL
);

COMMENT ON TABLE oncebox.discarded IS 'Messages that an operator gave up: never published, not by a replay either.';

COMMENT ON COLUMN oncebox.discarded.turn IS 'The turn in which that was. When all segments up to it are emptied, the message is gone, and so is the row.';

CREATE TABLE oncebox.event_kind (
    kind text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT event_kind_known CHECK ((kind = ANY (ARRAY['parked'::text, 'dead'::text, 'loss'::text, 'pause'::text, 'dead-letter'::text, 'stuck'::text, 'unhandled'::text])))
);

COMMENT ON TABLE oncebox.event_kind IS 'The kinds of events that are sent, as messages with the subject oncebox.events.KIND.';

CREATE TABLE oncebox.expectation (
    id bigint NOT NULL,
    subject text NOT NULL COLLATE pg_catalog."C",
    scope text NOT NULL COLLATE pg_catalog."C",
    within_seconds double precision NOT NULL,
    inbox_database text,
    looked_at timestamp with time zone,
    unhandled bigint DEFAULT 0 NOT NULL,
    oldest_at timestamp with time zone,
    oldest_key text COLLATE pg_catalog."C",
    CONSTRAINT expectation_database_size CHECK (((octet_length(inbox_database) >= 1) AND (octet_length(inbox_database) <= 255))),
    CONSTRAINT expectation_sizes CHECK ((((octet_length(subject) >= 1) AND (octet_length(subject) <= 1000)) AND ((octet_length(scope) >= 1) AND (octet_length(scope) <= 255)))),
    CONSTRAINT expectation_within CHECK (((within_seconds >= (1)::double precision) AND (within_seconds <= (31622400)::double precision)))
);

COMMENT ON TABLE oncebox.expectation IS 'Messages with such a subject must be in that inbox within this time after their commit.';

COMMENT ON COLUMN oncebox.expectation.subject IS 'A pattern: * stands for one token, a last > for one or more.';

COMMENT ON COLUMN oncebox.expectation.inbox_database IS 'The database of the inbox, by its name in the file of the relay''s databases; NULL is this one.';

COMMENT ON COLUMN oncebox.expectation.looked_at IS 'When a relay last looked; NULL when none has.';

COMMENT ON COLUMN oncebox.expectation.unhandled IS 'How many rows of unhandled it has; oldest_at and oldest_key are of the oldest.';

ALTER TABLE oncebox.expectation ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME oncebox.expectation_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE oncebox.expectation_mark (
    expectation bigint NOT NULL,
    xact xid8 NOT NULL,
    system_identifier bigint NOT NULL,
    marked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON TABLE oncebox.expectation_mark IS 'All transactions below xact had ended at marked_at. The messages of those below the oldest mark have been looked at.';

CREATE TABLE oncebox.history (
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    relay uuid NOT NULL,
    version text NOT NULL,
    leads boolean NOT NULL,
    seconds double precision NOT NULL,
    stored bigint NOT NULL,
    stored_median double precision,
    stored_p99 double precision,
    subjects text[] NOT NULL COLLATE pg_catalog."C",
    counts bigint[] NOT NULL,
    lag_seconds double precision,
    backlog bigint,
    parked bigint,
    dead bigint,
    delayed bigint,
    failing bigint,
    dead_letters bigint,
    sampled bigint,
    handled bigint,
    handled_median double precision,
    handled_p99 double precision,
    CONSTRAINT history_subjects CHECK (((cardinality(subjects) = cardinality(counts)) AND (cardinality(subjects) <= 21)))
);

COMMENT ON TABLE oncebox.history IS 'The minutes of the last eight days: messages that relays had stored, and how the database stood.';

COMMENT ON COLUMN oncebox.history.at IS 'The end of the time that the row is of; seconds is its length.';

COMMENT ON COLUMN oncebox.history.leads IS 'This relay was the leader, and wrote how the database stood; NULL in other rows.';

COMMENT ON COLUMN oncebox.history.stored_median IS 'Seconds from the enqueuing of a message until a stream had stored it: half of them took no longer, and 99 of 100 no longer than stored_p99.';

COMMENT ON COLUMN oncebox.history.subjects IS 'Twenty subjects, and how many messages of each were stored; those of all others stand last, under an empty name.';

COMMENT ON COLUMN oncebox.history.sampled IS 'Messages stored in the minute before that were looked for in the inboxes of this database; handled says how many one had handled, and handled_median and handled_p99 how many seconds after their enqueuing.';

CREATE TABLE oncebox.home (
    only_row boolean DEFAULT true NOT NULL,
    token text DEFAULT "left"(replace((gen_random_uuid())::text, '-'::text, ''::text), 12) NOT NULL,
    system_identifier bigint NOT NULL,
    database_oid bigint NOT NULL,
    database_name text NOT NULL,
    address text NOT NULL,
    noted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    moved_at timestamp with time zone,
    rival text,
    rival_since timestamp with time zone,
    rival_seen_at timestamp with time zone,
    CONSTRAINT home_only_row CHECK (only_row),
    CONSTRAINT home_rival CHECK ((((rival IS NULL) = (rival_since IS NULL)) AND ((rival IS NULL) = (rival_seen_at IS NULL))))
);

COMMENT ON TABLE oncebox.home IS 'Where this outbox lives: the cluster and the database in which relays serve it. In a copy it names the original.';

COMMENT ON COLUMN oncebox.home.token IS 'Relays of this outbox find each other over NATS by it, those of a copy too. Databases made from a template that no relay has served have one each.';

COMMENT ON COLUMN oncebox.home.address IS 'Servers and database as the configuration of the last relay names them.';

COMMENT ON COLUMN oncebox.home.moved_at IS 'When an operator last said that the original is here: of two databases, the one of which that was said later is the senior.';

COMMENT ON COLUMN oncebox.home.rival IS 'The address of another database in which a relay serves the same outbox, as a relay of this database found over NATS.';

CREATE VIEW oncebox.home_here AS
 SELECT here.system_identifier,
    here.database_oid,
    here.database_name,
    h.token,
    h.database_name AS noted_name,
    h.address,
    h.noted_at,
    h.moved_at,
    h.rival,
    h.rival_since,
    h.rival_seen_at,
        CASE
            WHEN (h.only_row IS NULL) THEN 'new'::text
            WHEN ((h.system_identifier = here.system_identifier) AND (h.database_oid = here.database_oid)) THEN 'here'::text
            WHEN ((h.database_name = here.database_name) AND (NOT COALESCE((original.datname = h.database_name), false))) THEN 'moved'::text
            WHEN ((h.system_identifier = here.system_identifier) AND (original.oid IS NULL)) THEN 'moved'::text
            ELSE 'copy'::text
        END AS verdict
   FROM ((( SELECT s.system_identifier,
            (d.oid)::bigint AS database_oid,
            (d.datname)::text AS database_name
           FROM (pg_control_system() s(pg_control_version, catalog_version_no, system_identifier, pg_control_last_modified)
             JOIN pg_database d ON ((d.datname = current_database())))
         OFFSET 0) here
     LEFT JOIN oncebox.home h ON (true))
     LEFT JOIN pg_database original ON (((h.system_identifier = here.system_identifier) AND ((original.oid)::bigint = h.database_oid))));

CREATE TABLE oncebox.inbox_attempt (
    scope text NOT NULL COLLATE pg_catalog."C",
    tenant text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    message text NOT NULL COLLATE pg_catalog."C",
    failures bigint DEFAULT 0 NOT NULL,
    begun bigint DEFAULT 0 NOT NULL,
    touched_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    reason text,
    failed_at timestamp with time zone,
    due_at timestamp with time zone,
    stream text COLLATE pg_catalog."C",
    stream_sequence bigint,
    subject text,
    first_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT inbox_attempt_counts CHECK (((failures >= 0) AND (begun >= 0))),
    CONSTRAINT inbox_attempt_failure CHECK (((failed_at IS NULL) = (reason IS NULL))),
    CONSTRAINT inbox_attempt_reason_size CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 1000)))
);

COMMENT ON TABLE oncebox.inbox_attempt IS 'Messages that failed, or were delivered again before they had ended. A row outlives its message''s end for a while.';

COMMENT ON COLUMN oncebox.inbox_attempt.message IS 'Which copy: stream, sequence, and when the stream stored it; empty for one that is in no stream.';

COMMENT ON COLUMN oncebox.inbox_attempt.failures IS 'How many attempts have failed.';

COMMENT ON COLUMN oncebox.inbox_attempt.begun IS 'How many runs have begun since and left no trace: the first beside others, each further one alone among its like.';

COMMENT ON COLUMN oncebox.inbox_attempt.reason IS 'Why the last one failed; NULL when none has. The message is failing as long as its key is not in inbox.';

COMMENT ON COLUMN oncebox.inbox_attempt.due_at IS 'When it is delivered again; NULL when the consumer has not said.';

COMMENT ON COLUMN oncebox.inbox_attempt.first_at IS 'When the row was written: an operator confirms the rows that a list showed, not later ones.';

CREATE TABLE oncebox.inbox_batch (
    xact xid8 DEFAULT pg_current_xact_id() NOT NULL
);

COMMENT ON TABLE oncebox.inbox_batch IS 'Always empty when committed: each batch inserts a row when it begins and deletes it right before its COMMIT. A COMMIT in between, by a handler, fails on the foreign key, which nothing fulfils.';

CREATE TABLE oncebox.inbox_batch_end (
    xact xid8 NOT NULL,
    CONSTRAINT inbox_batch_end_empty CHECK (false)
);

COMMENT ON TABLE oncebox.inbox_batch_end IS 'Always empty.';

CREATE TABLE oncebox.inbox_behind (
    id bigint NOT NULL,
    scope text NOT NULL COLLATE pg_catalog."C",
    tenant text NOT NULL,
    key text COLLATE pg_catalog."C",
    ordering_key text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL,
    headers jsonb NOT NULL,
    payload bytea NOT NULL,
    stream text NOT NULL COLLATE pg_catalog."C",
    stream_sequence bigint NOT NULL,
    stored_at timestamp with time zone NOT NULL,
    is_due boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON TABLE oncebox.inbox_behind IS 'Messages that wait for a dead letter of their ordering key, whole, and dead letters that were retried and have not ended. No retention deletes them.';

COMMENT ON COLUMN oncebox.inbox_behind.is_due IS 'The consumer runs it now: nothing of its line is before it.';

CREATE TABLE oncebox.inbox_effect (
    scope character varying(255) NOT NULL COLLATE pg_catalog."C",
    tenant character varying(255) NOT NULL COLLATE pg_catalog."C",
    key character varying(255) NOT NULL COLLATE pg_catalog."C",
    step text NOT NULL COLLATE pg_catalog."C",
    state text DEFAULT 'started'::text NOT NULL,
    result bytea,
    epoch bigint NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT inbox_effect_result CHECK (((state = 'started'::text) = (result IS NULL))),
    CONSTRAINT inbox_effect_state CHECK ((state = ANY (ARRAY['started'::text, 'done'::text, 'rejected'::text]))),
    CONSTRAINT inbox_effect_step_size CHECK (((octet_length(step) >= 1) AND (octet_length(step) <= 64)))
);

COMMENT ON TABLE oncebox.inbox_effect IS 'The effects outside this database of claims in progress, and of those given up. Forgotten when the claim ends well.';

COMMENT ON COLUMN oncebox.inbox_effect.state IS 'started: it may have happened; done: it happened; rejected: it never will.';

COMMENT ON COLUMN oncebox.inbox_effect.result IS 'The result as JSON (done), or the reason as text (rejected).';

CREATE TABLE oncebox.inbox_snooze (
    scope text NOT NULL COLLATE pg_catalog."C",
    tenant text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    message text NOT NULL COLLATE pg_catalog."C",
    delivery bigint NOT NULL,
    attempts bigint NOT NULL,
    snoozes bigint DEFAULT 1 NOT NULL,
    reason text NOT NULL,
    snoozed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    due_at timestamp with time zone NOT NULL,
    CONSTRAINT inbox_snooze_counts CHECK (((delivery >= 1) AND (attempts >= 0) AND (snoozes >= 1))),
    CONSTRAINT inbox_snooze_reason_size CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 1000)))
);

COMMENT ON TABLE oncebox.inbox_snooze IS 'Messages that a handler has snoozed. A row outlives its message''s end for a while.';

COMMENT ON COLUMN oncebox.inbox_snooze.message IS 'Which copy: stream, sequence, and when the stream stored it; empty for one that is in no stream.';

COMMENT ON COLUMN oncebox.inbox_snooze.delivery IS 'The number of the last delivery that was snoozed.';

COMMENT ON COLUMN oncebox.inbox_snooze.attempts IS 'How many attempts had failed before it.';

COMMENT ON COLUMN oncebox.inbox_snooze.snoozed_at IS 'Since when it has been snoozed again and again.';

CREATE TABLE oncebox.inbox_sweep (
    only_row boolean DEFAULT true NOT NULL,
    next_block bigint DEFAULT 0 NOT NULL,
    finished_at timestamp with time zone,
    basis text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT inbox_sweep_block CHECK ((next_block >= 0)),
    CONSTRAINT inbox_sweep_only_row CHECK (only_row)
);

COMMENT ON TABLE oncebox.inbox_sweep IS 'One row, locked by the process that deletes keys older than their retention. next_block: where in the tables it goes on; finished_at: when it last came to the end.';

COMMENT ON COLUMN oncebox.inbox_sweep.basis IS 'The files and retentions for which inbox_sweep_range is right.';

CREATE TABLE oncebox.inbox_sweep_range (
    first_block bigint NOT NULL,
    due_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE oncebox.inbox_sweep_range IS 'For each range of blocks: before that time no row in it is past its retention.';

CREATE TABLE oncebox.installation (
    only_row boolean DEFAULT true NOT NULL,
    role_prefix text NOT NULL,
    CONSTRAINT installation_only_row CHECK (only_row)
);

COMMENT ON TABLE oncebox.installation IS 'One row: settings of this database alone.';

COMMENT ON COLUMN oncebox.installation.role_prefix IS 'The beginning of the names of the four roles. Roles are the cluster''s: a name of this database''s own keeps other databases'' members out.';

CREATE TABLE oncebox.lane (
    lane smallint NOT NULL
);

COMMENT ON TABLE oncebox.lane IS 'The lanes. A relay that works on a lane has its row locked.';

CREATE VIEW oncebox.lane_cursor AS
 SELECT l.lane,
    c.number,
    c.floor,
    c.high,
    c.snap,
    c.target,
    c.after,
    c.reset_until,
    c.system_identifier,
    c.settled_at,
    c.acknowledged
   FROM (oncebox.lane l
     CROSS JOIN LATERAL ( SELECT newest.lane,
            newest.number,
            newest.floor,
            newest.high,
            newest.snap,
            newest.target,
            newest.after,
            newest.reset_until,
            newest.system_identifier,
            newest.settled_at,
            newest.acknowledged
           FROM oncebox.cursor newest
          WHERE (newest.lane = l.lane)
          ORDER BY newest.number DESC
         LIMIT 1) c);

CREATE TABLE oncebox.late_receipt (
    lane smallint NOT NULL,
    id bigint NOT NULL,
    replay integer NOT NULL,
    stream text NOT NULL COLLATE pg_catalog."C",
    sequence bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    turn bigint,
    key text COLLATE pg_catalog."C",
    subject text,
    ordering_key text,
    headers jsonb,
    payload bytea,
    created_at timestamp with time zone,
    CONSTRAINT late_receipt_message CHECK ((num_nulls(key, subject, headers, payload, created_at) = ANY (ARRAY[0, 5])))
);

COMMENT ON TABLE oncebox.late_receipt IS 'Messages that had been parked, and replays: cursors passed them before they were stored, so that each has a receipt of its own.';

COMMENT ON COLUMN oncebox.late_receipt.key IS 'With the other columns of a message: set where its segment was emptied before it was stored, in case the stream loses it.';

CREATE SEQUENCE oncebox.message_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE oncebox.message_0 (
    id bigint DEFAULT nextval('oncebox.message_id_seq'::regclass) NOT NULL,
    lane smallint NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL,
    ordering_key text,
    headers jsonb DEFAULT '{}'::jsonb NOT NULL,
    payload bytea NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');

COMMENT ON TABLE oncebox.message_0 IS 'A segment of the message log. Private: append-only but for edit_dead(), written by enqueue(), read by the relay.';

CREATE TABLE oncebox.message_1 (
    id bigint DEFAULT nextval('oncebox.message_id_seq'::regclass) CONSTRAINT message_0_id_not_null NOT NULL,
    lane smallint CONSTRAINT message_0_lane_not_null NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() CONSTRAINT message_0_xact_not_null NOT NULL,
    key text CONSTRAINT message_0_key_not_null NOT NULL COLLATE pg_catalog."C",
    subject text CONSTRAINT message_0_subject_not_null NOT NULL,
    ordering_key text,
    headers jsonb DEFAULT '{}'::jsonb CONSTRAINT message_0_headers_not_null NOT NULL,
    payload bytea CONSTRAINT message_0_payload_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT message_0_created_at_not_null NOT NULL
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');

COMMENT ON TABLE oncebox.message_1 IS 'A segment of the message log, as message_0.';

CREATE TABLE oncebox.message_2 (
    id bigint DEFAULT nextval('oncebox.message_id_seq'::regclass) CONSTRAINT message_0_id_not_null NOT NULL,
    lane smallint CONSTRAINT message_0_lane_not_null NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() CONSTRAINT message_0_xact_not_null NOT NULL,
    key text CONSTRAINT message_0_key_not_null NOT NULL COLLATE pg_catalog."C",
    subject text CONSTRAINT message_0_subject_not_null NOT NULL,
    ordering_key text,
    headers jsonb DEFAULT '{}'::jsonb CONSTRAINT message_0_headers_not_null NOT NULL,
    payload bytea CONSTRAINT message_0_payload_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT message_0_created_at_not_null NOT NULL
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');

COMMENT ON TABLE oncebox.message_2 IS 'A segment of the message log, as message_0.';

CREATE TABLE oncebox.message_3 (
    id bigint DEFAULT nextval('oncebox.message_id_seq'::regclass) CONSTRAINT message_0_id_not_null NOT NULL,
    lane smallint CONSTRAINT message_0_lane_not_null NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() CONSTRAINT message_0_xact_not_null NOT NULL,
    key text CONSTRAINT message_0_key_not_null NOT NULL COLLATE pg_catalog."C",
    subject text CONSTRAINT message_0_subject_not_null NOT NULL,
    ordering_key text,
    headers jsonb DEFAULT '{}'::jsonb CONSTRAINT message_0_headers_not_null NOT NULL,
    payload bytea CONSTRAINT message_0_payload_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT message_0_created_at_not_null NOT NULL
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');

COMMENT ON TABLE oncebox.message_3 IS 'A segment of the message log, as message_0.';

CREATE TABLE oncebox.message_4 (
    id bigint DEFAULT nextval('oncebox.message_id_seq'::regclass) CONSTRAINT message_0_id_not_null NOT NULL,
    lane smallint CONSTRAINT message_0_lane_not_null NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() CONSTRAINT message_0_xact_not_null NOT NULL,
    key text CONSTRAINT message_0_key_not_null NOT NULL COLLATE pg_catalog."C",
    subject text CONSTRAINT message_0_subject_not_null NOT NULL,
    ordering_key text,
    headers jsonb DEFAULT '{}'::jsonb CONSTRAINT message_0_headers_not_null NOT NULL,
    payload bytea CONSTRAINT message_0_payload_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT message_0_created_at_not_null NOT NULL
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');

COMMENT ON TABLE oncebox.message_4 IS 'A segment of the message log, as message_0.';

CREATE TABLE oncebox.message_5 (
    id bigint DEFAULT nextval('oncebox.message_id_seq'::regclass) CONSTRAINT message_0_id_not_null NOT NULL,
    lane smallint CONSTRAINT message_0_lane_not_null NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() CONSTRAINT message_0_xact_not_null NOT NULL,
    key text CONSTRAINT message_0_key_not_null NOT NULL COLLATE pg_catalog."C",
    subject text CONSTRAINT message_0_subject_not_null NOT NULL,
    ordering_key text,
    headers jsonb DEFAULT '{}'::jsonb CONSTRAINT message_0_headers_not_null NOT NULL,
    payload bytea CONSTRAINT message_0_payload_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT message_0_created_at_not_null NOT NULL
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');

COMMENT ON TABLE oncebox.message_5 IS 'A segment of the message log, as message_0.';

CREATE TABLE oncebox.message_6 (
    id bigint DEFAULT nextval('oncebox.message_id_seq'::regclass) CONSTRAINT message_0_id_not_null NOT NULL,
    lane smallint CONSTRAINT message_0_lane_not_null NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() CONSTRAINT message_0_xact_not_null NOT NULL,
    key text CONSTRAINT message_0_key_not_null NOT NULL COLLATE pg_catalog."C",
    subject text CONSTRAINT message_0_subject_not_null NOT NULL,
    ordering_key text,
    headers jsonb DEFAULT '{}'::jsonb CONSTRAINT message_0_headers_not_null NOT NULL,
    payload bytea CONSTRAINT message_0_payload_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT message_0_created_at_not_null NOT NULL
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');

COMMENT ON TABLE oncebox.message_6 IS 'A segment of the message log, as message_0.';

CREATE TABLE oncebox.message_7 (
    id bigint DEFAULT nextval('oncebox.message_id_seq'::regclass) CONSTRAINT message_0_id_not_null NOT NULL,
    lane smallint CONSTRAINT message_0_lane_not_null NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() CONSTRAINT message_0_xact_not_null NOT NULL,
    key text CONSTRAINT message_0_key_not_null NOT NULL COLLATE pg_catalog."C",
    subject text CONSTRAINT message_0_subject_not_null NOT NULL,
    ordering_key text,
    headers jsonb DEFAULT '{}'::jsonb CONSTRAINT message_0_headers_not_null NOT NULL,
    payload bytea CONSTRAINT message_0_payload_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() CONSTRAINT message_0_created_at_not_null NOT NULL
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');

COMMENT ON TABLE oncebox.message_7 IS 'A segment of the message log, as message_0.';

CREATE VIEW oncebox.log AS
 SELECT message_0.id,
    message_0.lane,
    message_0.xact,
    message_0.key,
    message_0.subject,
    message_0.ordering_key,
    message_0.headers,
    message_0.payload,
    message_0.created_at,
    message_0.xmin,
    message_0.tableoid
   FROM oncebox.message_0
UNION ALL
 SELECT message_1.id,
    message_1.lane,
    message_1.xact,
    message_1.key,
    message_1.subject,
    message_1.ordering_key,
    message_1.headers,
    message_1.payload,
    message_1.created_at,
    message_1.xmin,
    message_1.tableoid
   FROM oncebox.message_1
UNION ALL
 SELECT message_2.id,
    message_2.lane,
    message_2.xact,
    message_2.key,
    message_2.subject,
    message_2.ordering_key,
    message_2.headers,
    message_2.payload,
    message_2.created_at,
    message_2.xmin,
    message_2.tableoid
   FROM oncebox.message_2
UNION ALL
 SELECT message_3.id,
    message_3.lane,
    message_3.xact,
    message_3.key,
    message_3.subject,
    message_3.ordering_key,
    message_3.headers,
    message_3.payload,
    message_3.created_at,
    message_3.xmin,
    message_3.tableoid
   FROM oncebox.message_3
UNION ALL
 SELECT message_4.id,
    message_4.lane,
    message_4.xact,
    message_4.key,
    message_4.subject,
    message_4.ordering_key,
    message_4.headers,
    message_4.payload,
    message_4.created_at,
    message_4.xmin,
    message_4.tableoid
   FROM oncebox.message_4
UNION ALL
 SELECT message_5.id,
    message_5.lane,
    message_5.xact,
    message_5.key,
    message_5.subject,
    message_5.ordering_key,
    message_5.headers,
    message_5.payload,
    message_5.created_at,
    message_5.xmin,
    message_5.tableoid
   FROM oncebox.message_5
UNION ALL
 SELECT message_6.id,
    message_6.lane,
    message_6.xact,
    message_6.key,
    message_6.subject,
    message_6.ordering_key,
    message_6.headers,
    message_6.payload,
    message_6.created_at,
    message_6.xmin,
    message_6.tableoid
   FROM oncebox.message_6
UNION ALL
 SELECT message_7.id,
    message_7.lane,
    message_7.xact,
    message_7.key,
    message_7.subject,
    message_7.ordering_key,
    message_7.headers,
    message_7.payload,
    message_7.created_at,
    message_7.xmin,
    message_7.tableoid
   FROM oncebox.message_7;

COMMENT ON VIEW oncebox.log IS 'The message log: all segments.';

CREATE TABLE oncebox.loss (
    lane smallint NOT NULL,
    stream text NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL,
    kind text NOT NULL,
    sequence bigint NOT NULL,
    lost_sequence bigint NOT NULL,
    receipt_number bigint,
    floor bigint NOT NULL,
    high bigint NOT NULL,
    snap pg_snapshot NOT NULL,
    found_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    subjects text,
    resending_at timestamp with time zone,
    rewound_number bigint,
    until_floor bigint,
    until_high bigint,
    until_snap pg_snapshot,
    until_target pg_snapshot,
    until_after bigint,
    ended_at timestamp with time zone,
    CONSTRAINT loss_bounds CHECK (((floor >= 0) AND (high >= 0) AND (until_floor >= 0) AND (until_high >= 0))),
    CONSTRAINT loss_kind CHECK ((kind = ANY (ARRAY['tail'::text, 'restored'::text, 'recreated'::text, 'unproven'::text]))),
    CONSTRAINT loss_state CHECK (((ended_at IS NULL) OR (resending_at IS NOT NULL))),
    CONSTRAINT loss_until CHECK (((resending_at IS NULL) = (until_high IS NULL)))
);

COMMENT ON TABLE oncebox.loss IS 'Messages that streams lost after they had acknowledged them, lane by lane: from where a lane is to be sent again, and since when it is.';

COMMENT ON COLUMN oncebox.loss.number IS 'Of the cursor that was written when the loss was found.';

COMMENT ON COLUMN oncebox.loss.kind IS 'tail: the end of the stream is missing. restored: the same, of a stream that was restored from a backup. recreated: it is another stream. unproven: no receipt is left that the stream can prove.';

COMMENT ON COLUMN oncebox.loss.sequence IS 'Up to here the stream has all that it acknowledged; it had acknowledged up to lost_sequence.';

COMMENT ON COLUMN oncebox.loss.subjects IS 'The subjects that are sent again: those of the stream when that began. Kept, since every message that was parked with such a subject is read from the log from then on.';

COMMENT ON COLUMN oncebox.loss.until_high IS 'With the other columns of this name: where the lane stood when it was rewound. Messages that this cursor calls settled are sent again, the rest for the first time.';

CREATE TABLE oncebox.maintenance (
    only_row boolean DEFAULT true NOT NULL,
    CONSTRAINT maintenance_only_row CHECK (only_row)
);

COMMENT ON TABLE oncebox.maintenance IS 'One row, locked by the relay that deletes messages past their retention.';

CREATE TABLE oncebox.maintenance_fault (
    step text NOT NULL COLLATE pg_catalog."C",
    reason text NOT NULL,
    since timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT maintenance_fault_reason CHECK ((length(reason) <= 1000))
);

COMMENT ON TABLE oncebox.maintenance_fault IS 'Steps of maintenance that fail: each stops no other. A row goes when its step works again.';

CREATE VIEW oncebox.message AS
 SELECT m.id,
    m.lane,
    m.xact,
    m.key,
    m.subject,
    m.ordering_key,
    m.headers,
    m.payload,
    m.created_at,
    oncebox.turn_of(m.tableoid) AS turn
   FROM oncebox.log m
UNION ALL
 SELECT p.id,
    p.lane,
    '3'::xid8 AS xact,
    p.key,
    p.subject,
    p.ordering_key,
    p.headers,
    p.payload,
    p.created_at,
    p.turn
   FROM oncebox.parked p
  WHERE (p.turn <> ALL (ARRAY( SELECT s.turn
           FROM oncebox.segment s
          WHERE (NOT s.is_empty))))
UNION ALL
 SELECT r.id,
    r.lane,
    '3'::xid8 AS xact,
    r.key,
    r.subject,
    r.ordering_key,
    r.headers,
    r.payload,
    r.created_at,
    r.turn
   FROM oncebox.late_receipt r
  WHERE ((r.key IS NOT NULL) AND (NOT (EXISTS ( SELECT
           FROM oncebox.parked p
          WHERE ((p.lane = r.lane) AND (p.id = r.id))))) AND (NOT (EXISTS ( SELECT
           FROM oncebox.late_receipt n
          WHERE ((n.lane = r.lane) AND (n.id = r.id) AND (n.key IS NOT NULL) AND (n.replay > r.replay))))));

COMMENT ON VIEW oncebox.message IS 'The messages of the log, and those of emptied segments that were set aside.';

CREATE VIEW oncebox.message_ids AS
 SELECT
        CASE
            WHEN is_called THEN last_value
            ELSE (last_value - 1)
        END AS stood_at,
    COALESCE(( SELECT max(GREATEST(c.floor, c.high, c.reset_until, newest.id)) AS max
           FROM (oncebox.lane_cursor c
             LEFT JOIN LATERAL ( SELECT m.id
                   FROM oncebox.log m
                  WHERE (m.lane = c.lane)
                  ORDER BY m.id DESC
                 LIMIT 1) newest ON (true))), (0)::bigint) AS needed
   FROM oncebox.message_id_seq s;

COMMENT ON VIEW oncebox.message_ids IS 'Where the sequence of ids stands, and where it must stand at least.';

CREATE TABLE oncebox.migration (
    version integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    oldest_program integer
);

COMMENT ON TABLE oncebox.migration IS 'version 28, oldest program 14';

COMMENT ON COLUMN oncebox.migration.oldest_program IS 'Programs that were built for this version and later ones work with the schema as it is after this migration.';

CREATE TABLE oncebox.milestone (
    lane smallint NOT NULL,
    number bigint NOT NULL,
    floor bigint NOT NULL,
    high bigint NOT NULL,
    snap pg_snapshot NOT NULL,
    system_identifier bigint NOT NULL,
    reached_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT milestone_bounds CHECK (((floor >= 0) AND (high >= 0)))
);

COMMENT ON TABLE oncebox.milestone IS 'Where the cursors stood at some times: messages that a milestone calls settled were settled no later than reached_at.';

CREATE TABLE oncebox.outbox (
    only_row boolean DEFAULT true NOT NULL,
    identity text DEFAULT "left"(replace((gen_random_uuid())::text, '-'::text, ''::text), 12) NOT NULL,
    CONSTRAINT outbox_identity CHECK (((identity COLLATE "C") ~ '^[0-9a-f]{12}$'::text)),
    CONSTRAINT outbox_only_row CHECK (only_row)
);

COMMENT ON TABLE oncebox.outbox IS 'One row: the identity of this outbox, the first part of each Nats-Msg-Id. Copy it with the messages.';

CREATE TABLE oncebox.pause (
    kind text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C",
    rate double precision,
    subjects text[],
    ordering_key text COLLATE pg_catalog."C",
    reason text,
    paused_by text,
    database_user text DEFAULT SESSION_USER NOT NULL,
    paused_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ends_at timestamp with time zone DEFAULT 'infinity'::timestamp with time zone NOT NULL,
    CONSTRAINT pause_by_size CHECK (((octet_length(paused_by) >= 1) AND (octet_length(paused_by) <= 255))),
    CONSTRAINT pause_kind CHECK ((kind = ANY (ARRAY['all'::text, 'subject'::text, 'stream'::text, 'ordering key'::text]))),
    CONSTRAINT pause_matches CHECK ((((subjects IS NULL) = (kind = 'ordering key'::text)) AND ((ordering_key IS NULL) = (subjects IS NOT NULL)))),
    CONSTRAINT pause_rate CHECK ((rate > (0)::double precision)),
    CONSTRAINT pause_reason_size CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 1000))),
    CONSTRAINT pause_subjects CHECK ((array_position(subjects, NULL::text) IS NULL)),
    CONSTRAINT pause_value_size CHECK (((octet_length(value) >= 1) AND (octet_length(value) <= 1000)))
);

COMMENT ON TABLE oncebox.pause IS 'The pauses and throttles of operators: relays send none of these messages, or a number of them a second, until ends_at.';

COMMENT ON COLUMN oncebox.pause.rate IS 'Messages a second; NULL = none.';

COMMENT ON COLUMN oncebox.pause.subjects IS 'Patterns; of a stream those that it had when it was paused.';

CREATE TABLE oncebox.receipt (
    lane smallint NOT NULL,
    stream text NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL,
    sequence bigint NOT NULL,
    message_id text COLLATE pg_catalog."C",
    floor bigint NOT NULL,
    high bigint NOT NULL,
    snap pg_snapshot NOT NULL,
    system_identifier bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT receipt_bounds CHECK (((number >= 0) AND (sequence >= 0) AND (floor >= 0) AND (high >= 0)))
);

COMMENT ON TABLE oncebox.receipt IS 'Where cursors stood, with the acknowledgements of a stream: all that the cursor calls settled was acknowledged by this stream at or below the sequence, or by another stream, or has a late receipt.';

COMMENT ON COLUMN oncebox.receipt.number IS 'Of the cursor.';

COMMENT ON COLUMN oncebox.receipt.message_id IS 'The Nats-Msg-Id of the message at the sequence; NULL before a lane''s first message in the stream.';

CREATE TABLE oncebox.relay (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    retention_seconds double precision,
    dead_blocks boolean NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT relay_retention CHECK ((retention_seconds > (0)::double precision))
);

COMMENT ON TABLE oncebox.relay IS 'The relays that were at work lately, with the settings that all of them should share. A row that is not renewed is deleted.';

COMMENT ON COLUMN oncebox.relay.retention_seconds IS 'How long settled messages are kept; NULL is for ever.';

COMMENT ON COLUMN oncebox.relay.dead_blocks IS 'Whether a dead message holds back its ordering key (on_dead = block).';

CREATE SEQUENCE oncebox.relay_asleep
    AS smallint
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    MAXVALUE 1
    CACHE 1;

CREATE TABLE oncebox.replay (
    lane smallint NOT NULL,
    id bigint NOT NULL,
    number integer NOT NULL,
    request text NOT NULL,
    requested_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    cancelled integer,
    turn bigint DEFAULT pg_sequence_last_value('oncebox.turn'::regclass) NOT NULL,
    CONSTRAINT replay_number CHECK ((number >= 1)),
    CONSTRAINT replay_request_size CHECK (((octet_length(request) >= 1) AND (octet_length(request) <= 255)))
);

COMMENT ON TABLE oncebox.replay IS 'How often a message was replayed, and by which request last, so that a request that was cut off can go on.';

COMMENT ON COLUMN oncebox.replay.cancelled IS 'The number of the last replay that an operator gave up before it was sent; NULL = none.';

COMMENT ON COLUMN oncebox.replay.turn IS 'The turn of the last request; the row goes as that of a discarded message does.';

CREATE TABLE oncebox.reset (
    lane smallint NOT NULL,
    snap pg_snapshot DEFAULT pg_current_snapshot() NOT NULL
);

COMMENT ON TABLE oncebox.reset IS 'When a lane was found to hold messages of another cluster: up to its floor, messages visible in snap are settled or parked.';

CREATE TABLE oncebox.saga (
    id bigint NOT NULL,
    type text NOT NULL COLLATE pg_catalog."C",
    business_id text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    version integer NOT NULL,
    fingerprint text NOT NULL COLLATE pg_catalog."C",
    state text DEFAULT 'running'::text NOT NULL COLLATE pg_catalog."C",
    direction text DEFAULT 'forward'::text NOT NULL,
    reason text,
    data jsonb NOT NULL,
    began_with bytea NOT NULL,
    revision bigint DEFAULT 1 NOT NULL,
    deadline_at timestamp with time zone,
    due_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    changed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    scope text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT saga_direction CHECK ((direction = ANY (ARRAY['forward'::text, 'backward'::text]))),
    CONSTRAINT saga_due CHECK (((due_at IS NULL) OR ((finished_at IS NULL) AND (state <> 'quarantined'::text)))),
    CONSTRAINT saga_finished CHECK (((finished_at IS NOT NULL) = (state = ANY (ARRAY['completed'::text, 'compensated'::text, 'abandoned'::text])))),
    CONSTRAINT saga_sizes CHECK ((((octet_length(type) >= 1) AND (octet_length(type) <= 64)) AND ((octet_length(business_id) >= 1) AND (octet_length(business_id) <= 128)) AND ((octet_length(key) >= 1) AND (octet_length(key) <= 255)) AND (octet_length(reason) <= 1000))),
    CONSTRAINT saga_state CHECK ((state = ANY (ARRAY['running'::text, 'compensating'::text, 'stuck'::text, 'quarantined'::text, 'completed'::text, 'compensated'::text, 'abandoned'::text])))
);

COMMENT ON TABLE oncebox.saga IS 'Instances of business processes. Each change of one is a transaction that holds its row.';

COMMENT ON COLUMN oncebox.saga.type IS 'The name of its definition.';

COMMENT ON COLUMN oncebox.saga.business_id IS 'The business object, such as the order''s number; once per type.';

COMMENT ON COLUMN oncebox.saga.key IS 'The key that those of its commands are derived from.';

COMMENT ON COLUMN oncebox.saga.version IS 'The version of the definition that it began with and goes on with.';

COMMENT ON COLUMN oncebox.saga.fingerprint IS 'That of the graph of this version, in hexadecimal: an orchestrator that has no such graph leaves the instance alone.';

COMMENT ON COLUMN oncebox.saga.state IS 'stuck: a step, or a compensation, waits for an operator, others may go on. quarantined: it could not be read, and waits for an operator.';

COMMENT ON COLUMN oncebox.saga.direction IS 'forward until it is given up, backward from then on.';

COMMENT ON COLUMN oncebox.saga.reason IS 'Why it is compensating, stuck, quarantined, compensated or abandoned.';

COMMENT ON COLUMN oncebox.saga.began_with IS 'SHA-256 of the data that it began with, with its elements in any order: a start with the same business id and other data is refused.';

COMMENT ON COLUMN oncebox.saga.revision IS 'Grows with every change.';

COMMENT ON COLUMN oncebox.saga.deadline_at IS 'When all of it must have gone past its pivot, or be complete.';

COMMENT ON COLUMN oncebox.saga.due_at IS 'When an orchestrator has to look at it again: the first deadline, or now, because an operator asked for something.';

COMMENT ON COLUMN oncebox.saga.scope IS 'The scope of the orchestrator that started it; those of other scopes leave it alone.';

CREATE TABLE oncebox.saga_definition (
    fingerprint text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    version integer NOT NULL,
    graph jsonb NOT NULL,
    registered_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    plan jsonb,
    scope text COLLATE pg_catalog."C",
    reply_to text COLLATE pg_catalog."C",
    CONSTRAINT saga_definition_plan CHECK (((plan IS NULL) OR ((scope IS NOT NULL) AND (reply_to IS NOT NULL))))
);

COMMENT ON TABLE oncebox.saga_definition IS 'The graphs that orchestrators had when they started, for operators to look at, and the plans by which start_saga() starts sagas of files.';

COMMENT ON COLUMN oncebox.saga_definition.graph IS 'An array of steps: name, after (names), is_pivot, subject, compensation (a subject or null); of a file also needs, the fields of the replies of earlier steps that its commands cannot do without.';

COMMENT ON COLUMN oncebox.saga_definition.plan IS 'Of a file: the fields of the data, and the first commands. NULL: a program starts these sagas, or another file has replaced this one.';

COMMENT ON COLUMN oncebox.saga_definition.scope IS 'With a plan: the scope of the orchestrator that leads the sagas.';

COMMENT ON COLUMN oncebox.saga_definition.reply_to IS 'With a plan: the subject that participants answer to.';

CREATE TABLE oncebox.saga_event (
    id bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    is_orphan boolean NOT NULL,
    kind text NOT NULL,
    step text NOT NULL COLLATE pg_catalog."C",
    attempt integer NOT NULL,
    is_undo boolean NOT NULL,
    payload bytea DEFAULT '\x'::bytea NOT NULL,
    reason text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    scope text COLLATE pg_catalog."C",
    CONSTRAINT saga_event_kind CHECK ((kind = ANY (ARRAY['done'::text, 'rejected'::text, 'dead'::text, 'retry'::text, 'skip'::text]))),
    CONSTRAINT saga_event_sizes CHECK ((((octet_length(key) >= 1) AND (octet_length(key) <= 255)) AND ((octet_length(step) >= 1) AND (octet_length(step) <= 64)) AND (octet_length(reason) <= 1000)))
);

COMMENT ON TABLE oncebox.saga_event IS 'Answers that came too early for their saga, and requests of operators: applied by the next transaction that changes the saga.';

COMMENT ON COLUMN oncebox.saga_event.key IS 'The key of the saga.';

COMMENT ON COLUMN oncebox.saga_event.is_orphan IS 'No saga had this key when the answer came.';

COMMENT ON COLUMN oncebox.saga_event.scope IS 'The scope of the inbox that an answer or a death comes from; NULL for an answer that does not say.';

ALTER TABLE oncebox.saga_event ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME oncebox.saga_event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE oncebox.saga ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME oncebox.saga_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE oncebox.saga_leader (
    scope text NOT NULL COLLATE pg_catalog."C",
    fingerprint text NOT NULL COLLATE pg_catalog."C",
    led_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON TABLE oncebox.saga_leader IS 'When a process of an orchestrator last led sagas of a graph.';

COMMENT ON COLUMN oncebox.saga_leader.scope IS 'The scope of the orchestrator.';

CREATE TABLE oncebox.saga_step (
    saga_id bigint NOT NULL,
    step text NOT NULL COLLATE pg_catalog."C",
    state text NOT NULL,
    attempt integer NOT NULL,
    undo_attempt integer DEFAULT 0 NOT NULL,
    in_doubt boolean DEFAULT false NOT NULL,
    subject text NOT NULL,
    payload bytea NOT NULL,
    undo_subject text,
    undo_payload bytea,
    reason text,
    deadline_at timestamp with time zone,
    sent_at timestamp with time zone NOT NULL,
    answered_at timestamp with time zone,
    undo_sent_at timestamp with time zone,
    undone_at timestamp with time zone,
    CONSTRAINT saga_step_reason CHECK ((octet_length(reason) <= 1000)),
    CONSTRAINT saga_step_state CHECK ((state = ANY (ARRAY['sent'::text, 'done'::text, 'rejected'::text, 'failed'::text, 'undoing'::text, 'undo-failed'::text, 'undone'::text]))),
    CONSTRAINT saga_step_undo CHECK ((((undo_attempt > 0) = (undo_subject IS NOT NULL)) AND ((undo_subject IS NULL) = (undo_payload IS NULL))))
);

COMMENT ON TABLE oncebox.saga_step IS 'The steps of sagas that were sent, with their commands as they were sent.';

COMMENT ON COLUMN oncebox.saga_step.state IS 'rejected: the participant said no, and had no effect. failed: it is not known whether it had one. undo-failed: the compensation was rejected, died or is late.';

COMMENT ON COLUMN oncebox.saga_step.attempt IS 'The newest attempt: from the second on the command''s key ends with :#2 and so on.';

COMMENT ON COLUMN oncebox.saga_step.undo_attempt IS 'The newest attempt at the compensation, 0 before the first: from the second on its key ends with :#2:undo and so on.';

COMMENT ON COLUMN oncebox.saga_step.in_doubt IS 'It is not known whether an attempt before the newest had an effect: so its compensation is due even where the newest was rejected.';

COMMENT ON COLUMN oncebox.saga_step.reason IS 'Why it failed, or who skipped it.';

COMMENT ON COLUMN oncebox.saga_step.deadline_at IS 'When the answer to the newest command is late; NULL when none is awaited.';

CREATE TABLE oncebox.stream (
    name text NOT NULL COLLATE pg_catalog."C",
    created timestamp with time zone NOT NULL,
    subjects text NOT NULL,
    checked_at timestamp with time zone NOT NULL,
    CONSTRAINT stream_times CHECK ((isfinite(created) AND isfinite(checked_at)))
);

COMMENT ON TABLE oncebox.stream IS 'Streams that have acknowledged messages, as they were when a relay last looked, or when they first acknowledged something: one that was created at another time was restored, or made anew.';

COMMENT ON COLUMN oncebox.stream.subjects IS 'A regular expression of the subjects that it takes.';

CREATE TABLE oncebox.throttle (
    kind text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C",
    tokens double precision DEFAULT 0 NOT NULL,
    counted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON TABLE oncebox.throttle IS 'How many messages each throttle lets pass at once, and when that was counted.';

CREATE TABLE oncebox.unhandled (
    expectation bigint NOT NULL,
    lane smallint NOT NULL,
    id bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL,
    created_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE oncebox.unhandled IS 'Messages that were not in their inbox in time, and are not now: the first 10,000 of each expectation.';

ALTER TABLE ONLY oncebox.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY oncebox.barrier
    ADD CONSTRAINT barrier_pkey PRIMARY KEY (barrier, tenant, key);

ALTER TABLE ONLY oncebox.canary
    ADD CONSTRAINT canary_pkey PRIMARY KEY (id);

ALTER TABLE ONLY oncebox.canary_row
    ADD CONSTRAINT canary_row_pkey PRIMARY KEY (canary, place);

ALTER TABLE ONLY oncebox.consumer_position
    ADD CONSTRAINT consumer_position_pkey PRIMARY KEY (stream, durable);

ALTER TABLE ONLY oncebox.cursor
    ADD CONSTRAINT cursor_pkey PRIMARY KEY (lane, number);

ALTER TABLE ONLY oncebox.dead_letter
    ADD CONSTRAINT dead_letter_once UNIQUE (scope, stream, stream_sequence, stored_at);

ALTER TABLE ONLY oncebox.dead_letter
    ADD CONSTRAINT dead_letter_pkey PRIMARY KEY (id);

ALTER TABLE ONLY oncebox.delayed
    ADD CONSTRAINT delayed_key_unique UNIQUE (key);

ALTER TABLE ONLY oncebox.delayed_mover
    ADD CONSTRAINT delayed_mover_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY oncebox.delayed
    ADD CONSTRAINT delayed_pkey PRIMARY KEY (id);

ALTER TABLE ONLY oncebox.discarded
    ADD CONSTRAINT discarded_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.event_kind
    ADD CONSTRAINT event_kind_pkey PRIMARY KEY (kind);

ALTER TABLE ONLY oncebox.expectation_mark
    ADD CONSTRAINT expectation_mark_pkey PRIMARY KEY (expectation, xact);

ALTER TABLE ONLY oncebox.expectation
    ADD CONSTRAINT expectation_once UNIQUE (subject, scope);

ALTER TABLE ONLY oncebox.expectation
    ADD CONSTRAINT expectation_pkey PRIMARY KEY (id);

ALTER TABLE ONLY oncebox.history
    ADD CONSTRAINT history_pkey PRIMARY KEY (at, relay);

ALTER TABLE ONLY oncebox.home
    ADD CONSTRAINT home_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY oncebox.inbox_attempt
    ADD CONSTRAINT inbox_attempt_pkey PRIMARY KEY (scope, tenant, key, message);

ALTER TABLE ONLY oncebox.inbox_batch_end
    ADD CONSTRAINT inbox_batch_end_pkey PRIMARY KEY (xact);

ALTER TABLE ONLY oncebox.inbox_batch
    ADD CONSTRAINT inbox_batch_pkey PRIMARY KEY (xact);

ALTER TABLE ONLY oncebox.inbox_behind
    ADD CONSTRAINT inbox_behind_once UNIQUE (scope, stream, stream_sequence, stored_at);

ALTER TABLE ONLY oncebox.inbox_behind
    ADD CONSTRAINT inbox_behind_pkey PRIMARY KEY (id);

ALTER TABLE ONLY oncebox.inbox_claim
    ADD CONSTRAINT inbox_claim_pkey PRIMARY KEY (scope, tenant, key);

ALTER TABLE ONLY oncebox.inbox_effect
    ADD CONSTRAINT inbox_effect_pkey PRIMARY KEY (scope, tenant, key, step);

ALTER TABLE ONLY oncebox.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (scope, tenant, key);

ALTER TABLE ONLY oncebox.inbox_scope
    ADD CONSTRAINT inbox_scope_pkey PRIMARY KEY (scope);

ALTER TABLE ONLY oncebox.inbox_snooze
    ADD CONSTRAINT inbox_snooze_pkey PRIMARY KEY (scope, tenant, key, message);

ALTER TABLE ONLY oncebox.inbox_sweep
    ADD CONSTRAINT inbox_sweep_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY oncebox.inbox_sweep_range
    ADD CONSTRAINT inbox_sweep_range_pkey PRIMARY KEY (first_block);

ALTER TABLE ONLY oncebox.installation
    ADD CONSTRAINT installation_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY oncebox.kept
    ADD CONSTRAINT kept_pkey PRIMARY KEY (audit) INCLUDE (bytes);

ALTER TABLE ONLY oncebox.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (lane);

ALTER TABLE ONLY oncebox.late_receipt
    ADD CONSTRAINT late_receipt_pkey PRIMARY KEY (lane, id, replay);

ALTER TABLE ONLY oncebox.loss
    ADD CONSTRAINT loss_pkey PRIMARY KEY (lane, stream, number);

ALTER TABLE ONLY oncebox.maintenance_fault
    ADD CONSTRAINT maintenance_fault_pkey PRIMARY KEY (step);

ALTER TABLE ONLY oncebox.maintenance
    ADD CONSTRAINT maintenance_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY oncebox.message_0
    ADD CONSTRAINT message_0_key_unique UNIQUE (key);

ALTER TABLE ONLY oncebox.message_0
    ADD CONSTRAINT message_0_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.message_1
    ADD CONSTRAINT message_1_key_unique UNIQUE (key);

ALTER TABLE ONLY oncebox.message_1
    ADD CONSTRAINT message_1_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.message_2
    ADD CONSTRAINT message_2_key_unique UNIQUE (key);

ALTER TABLE ONLY oncebox.message_2
    ADD CONSTRAINT message_2_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.message_3
    ADD CONSTRAINT message_3_key_unique UNIQUE (key);

ALTER TABLE ONLY oncebox.message_3
    ADD CONSTRAINT message_3_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.message_4
    ADD CONSTRAINT message_4_key_unique UNIQUE (key);

ALTER TABLE ONLY oncebox.message_4
    ADD CONSTRAINT message_4_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.message_5
    ADD CONSTRAINT message_5_key_unique UNIQUE (key);

ALTER TABLE ONLY oncebox.message_5
    ADD CONSTRAINT message_5_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.message_6
    ADD CONSTRAINT message_6_key_unique UNIQUE (key);

ALTER TABLE ONLY oncebox.message_6
    ADD CONSTRAINT message_6_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.message_7
    ADD CONSTRAINT message_7_key_unique UNIQUE (key);

ALTER TABLE ONLY oncebox.message_7
    ADD CONSTRAINT message_7_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);

ALTER TABLE ONLY oncebox.milestone
    ADD CONSTRAINT milestone_pkey PRIMARY KEY (lane, number);

ALTER TABLE ONLY oncebox.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY oncebox.parked
    ADD CONSTRAINT parked_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.pause
    ADD CONSTRAINT pause_pkey PRIMARY KEY (kind, value);

ALTER TABLE ONLY oncebox.receipt
    ADD CONSTRAINT receipt_pkey PRIMARY KEY (lane, stream, number);

ALTER TABLE ONLY oncebox.relay
    ADD CONSTRAINT relay_pkey PRIMARY KEY (id);

ALTER TABLE ONLY oncebox.replay
    ADD CONSTRAINT replay_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY oncebox.reset
    ADD CONSTRAINT reset_pkey PRIMARY KEY (lane);

ALTER TABLE ONLY oncebox.saga
    ADD CONSTRAINT saga_business_id_unique UNIQUE (type, business_id);

ALTER TABLE ONLY oncebox.saga_definition
    ADD CONSTRAINT saga_definition_pkey PRIMARY KEY (fingerprint);

ALTER TABLE ONLY oncebox.saga_event
    ADD CONSTRAINT saga_event_pkey PRIMARY KEY (id);

ALTER TABLE ONLY oncebox.saga
    ADD CONSTRAINT saga_key_unique UNIQUE (key);

ALTER TABLE ONLY oncebox.saga_leader
    ADD CONSTRAINT saga_leader_pkey PRIMARY KEY (scope, fingerprint);

ALTER TABLE ONLY oncebox.saga
    ADD CONSTRAINT saga_pkey PRIMARY KEY (id);

ALTER TABLE ONLY oncebox.saga_step
    ADD CONSTRAINT saga_step_pkey PRIMARY KEY (saga_id, step);

ALTER TABLE ONLY oncebox.segment
    ADD CONSTRAINT segment_pkey PRIMARY KEY (number);

ALTER TABLE ONLY oncebox.stream
    ADD CONSTRAINT stream_pkey PRIMARY KEY (name);

ALTER TABLE ONLY oncebox.throttle
    ADD CONSTRAINT throttle_pkey PRIMARY KEY (kind, value);

ALTER TABLE ONLY oncebox.unhandled
    ADD CONSTRAINT unhandled_pkey PRIMARY KEY (expectation, lane, id);

CREATE INDEX audit_discards ON oncebox.audit USING btree (command) WHERE (action = ANY (ARRAY['discard'::text, 'edit'::text]));

CREATE INDEX audit_key ON oncebox.audit USING btree (key);

CREATE UNIQUE INDEX audit_undone ON oncebox.audit USING btree (undoes) WHERE (undoes IS NOT NULL);

CREATE INDEX barrier_changed_at ON oncebox.barrier USING btree (barrier, changed_at);

CREATE INDEX canary_row_next ON oncebox.canary_row USING btree (canary, state, place);

CREATE INDEX dead_letter_key ON oncebox.dead_letter USING btree (key) WHERE (key IS NOT NULL);

CREATE INDEX dead_letter_line ON oncebox.dead_letter USING btree (scope, ordering_key, id) WHERE (ordering_key IS NOT NULL);

CREATE INDEX delayed_due ON oncebox.delayed USING btree (not_before, id);

CREATE INDEX delayed_ordering_key ON oncebox.delayed USING btree (ordering_key, not_before, id) WHERE (ordering_key IS NOT NULL);

CREATE INDEX discarded_turn ON oncebox.discarded USING btree (turn);

CREATE INDEX inbox_attempt_failed ON oncebox.inbox_attempt USING btree (scope, failed_at) WHERE (failed_at IS NOT NULL);

CREATE INDEX inbox_attempt_touched ON oncebox.inbox_attempt USING btree (scope, touched_at);

CREATE INDEX inbox_behind_due ON oncebox.inbox_behind USING btree (scope, id) WHERE is_due;

CREATE INDEX inbox_behind_key ON oncebox.inbox_behind USING btree (key);

CREATE INDEX inbox_behind_line ON oncebox.inbox_behind USING btree (scope, ordering_key, id);

CREATE INDEX inbox_snooze_due ON oncebox.inbox_snooze USING btree (scope, due_at);

CREATE INDEX kept_age ON oncebox.kept USING btree (kept_at);

CREATE INDEX late_receipt_key ON oncebox.late_receipt USING btree (key) WHERE (key IS NOT NULL);

CREATE INDEX loss_resending ON oncebox.loss USING btree (lane) WHERE ((resending_at IS NOT NULL) AND (ended_at IS NULL));

CREATE INDEX message_0_lane_xact_id ON oncebox.message_0 USING btree (lane, xact, id);

CREATE INDEX message_1_lane_xact_id ON oncebox.message_1 USING btree (lane, xact, id);

CREATE INDEX message_2_lane_xact_id ON oncebox.message_2 USING btree (lane, xact, id);

CREATE INDEX message_3_lane_xact_id ON oncebox.message_3 USING btree (lane, xact, id);

CREATE INDEX message_4_lane_xact_id ON oncebox.message_4 USING btree (lane, xact, id);

CREATE INDEX message_5_lane_xact_id ON oncebox.message_5 USING btree (lane, xact, id);

CREATE INDEX message_6_lane_xact_id ON oncebox.message_6 USING btree (lane, xact, id);

CREATE INDEX message_7_lane_xact_id ON oncebox.message_7 USING btree (lane, xact, id);

CREATE INDEX parked_dead ON oncebox.parked USING btree (lane, id) WHERE (dead_at IS NOT NULL);

CREATE INDEX parked_dead_ordering_key ON oncebox.parked USING btree (lane, ordering_key, id) WHERE ((ordering_key IS NOT NULL) AND (dead_at IS NOT NULL));

CREATE INDEX parked_due ON oncebox.parked USING btree (lane, next_attempt_at) WHERE (next_attempt_at IS NOT NULL);

CREATE INDEX parked_key ON oncebox.parked USING btree (key);

CREATE INDEX parked_ordering_key ON oncebox.parked USING btree (lane, ordering_key, id) WHERE ((ordering_key IS NOT NULL) AND (dead_at IS NULL));

CREATE INDEX parked_waits_for ON oncebox.parked USING btree (lane, waits_for, next_attempt_at) WHERE (waits_for IS NOT NULL);

CREATE INDEX receipt_at ON oncebox.receipt USING btree (at);

CREATE INDEX replay_turn ON oncebox.replay USING btree (turn);

CREATE UNIQUE INDEX saga_definition_start ON oncebox.saga_definition USING btree (type, version) WHERE (plan IS NOT NULL);

CREATE INDEX saga_due_at ON oncebox.saga USING btree (due_at) WHERE (due_at IS NOT NULL);

CREATE INDEX saga_event_key ON oncebox.saga_event USING btree (key, id);

CREATE INDEX saga_event_orphan ON oncebox.saga_event USING btree (created_at) WHERE is_orphan;

CREATE INDEX saga_finished_at ON oncebox.saga USING btree (finished_at, type, state) WHERE (finished_at IS NOT NULL);

CREATE INDEX saga_open ON oncebox.saga USING btree (type, version, fingerprint, state, created_at) WHERE (finished_at IS NULL);

CREATE CONSTRAINT TRIGGER barrier_entry AFTER INSERT OR UPDATE OF xact ON oncebox.barrier DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ((new.state = ANY (ARRAY['acted'::text, 'undone'::text]))) EXECUTE FUNCTION oncebox.refuse_lone_entry();

CREATE TRIGGER claim_edit_once BEFORE INSERT ON oncebox.inbox FOR EACH ROW WHEN (((strpos((new.key)::text, ':oncebox-edit-'::text) > 0) AND (pg_trigger_depth() = 0))) EXECUTE FUNCTION oncebox.claim_edit_once();

CREATE TRIGGER claim_edit_once BEFORE INSERT ON oncebox.inbox_claim FOR EACH ROW WHEN (((strpos((new.key)::text, ':oncebox-edit-'::text) > 0) AND (pg_trigger_depth() = 0))) EXECUTE FUNCTION oncebox.claim_edit_once();

CREATE TRIGGER dead_letter_event AFTER INSERT ON oncebox.dead_letter FOR EACH ROW EXECUTE FUNCTION oncebox.dead_letter_event();

CREATE TRIGGER keep_line BEFORE DELETE ON oncebox.dead_letter FOR EACH ROW WHEN ((old.ordering_key IS NOT NULL)) EXECUTE FUNCTION oncebox.keep_line();

CREATE TRIGGER loss_event AFTER INSERT ON oncebox.loss FOR EACH ROW EXECUTE FUNCTION oncebox.loss_event();

CREATE TRIGGER parked_change_event AFTER UPDATE ON oncebox.parked FOR EACH ROW WHEN ((((old.dead_at IS NULL) AND (new.dead_at IS NOT NULL)) OR ((old.attempts = 0) AND (new.attempts > 0) AND (new.next_attempt_at IS NOT NULL)))) EXECUTE FUNCTION oncebox.parked_event();

CREATE TRIGGER parked_event AFTER INSERT ON oncebox.parked FOR EACH ROW WHEN (((new.attempts > 0) AND ((new.dead_at IS NOT NULL) OR (new.next_attempt_at IS NOT NULL)))) EXECUTE FUNCTION oncebox.parked_event();

CREATE TRIGGER pause_event AFTER INSERT ON oncebox.pause FOR EACH ROW EXECUTE FUNCTION oncebox.pause_event();

CREATE TRIGGER resume_event AFTER DELETE ON oncebox.pause FOR EACH ROW WHEN ((old.ends_at > clock_timestamp())) EXECUTE FUNCTION oncebox.pause_event();

CREATE TRIGGER stop_line BEFORE INSERT ON oncebox.dead_letter FOR EACH ROW EXECUTE FUNCTION oncebox.stop_line();

CREATE TRIGGER stuck_event AFTER UPDATE OF state ON oncebox.saga FOR EACH ROW WHEN (((new.state = ANY (ARRAY['stuck'::text, 'quarantined'::text])) AND (new.state IS DISTINCT FROM old.state))) EXECUTE FUNCTION oncebox.stuck_event();

ALTER TABLE ONLY oncebox.canary_row
    ADD CONSTRAINT canary_row_canary_fkey FOREIGN KEY (canary) REFERENCES oncebox.canary(id) ON DELETE CASCADE;

ALTER TABLE ONLY oncebox.expectation_mark
    ADD CONSTRAINT expectation_mark_expectation_fkey FOREIGN KEY (expectation) REFERENCES oncebox.expectation(id) ON DELETE CASCADE;

ALTER TABLE ONLY oncebox.inbox_batch
    ADD CONSTRAINT inbox_batch_is_committed_by_the_inbox_only FOREIGN KEY (xact) REFERENCES oncebox.inbox_batch_end(xact) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY oncebox.saga_step
    ADD CONSTRAINT saga_step_saga FOREIGN KEY (saga_id) REFERENCES oncebox.saga(id) ON DELETE CASCADE;

ALTER TABLE ONLY oncebox.unhandled
    ADD CONSTRAINT unhandled_expectation_fkey FOREIGN KEY (expectation) REFERENCES oncebox.expectation(id) ON DELETE CASCADE;

GRANT USAGE ON SCHEMA oncebox TO oncebox_producer;
GRANT USAGE ON SCHEMA oncebox TO oncebox_relay;
GRANT USAGE ON SCHEMA oncebox TO oncebox_operator;
GRANT USAGE ON SCHEMA oncebox TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.abandon_saga(saga_id bigint, why text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.abandon_saga_as(saga_id bigint, why text, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.abandon_saga_as(saga_id bigint, why text, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.adopt(is_moved boolean, discards boolean, operator text, note text, OUT identity text, OUT backlog bigint, OUT digest text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.adopt(is_moved boolean, discards boolean, operator text, note text, OUT identity text, OUT backlog bigint, OUT digest text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.advance_line(scope text, ordering_key text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.append(ids bigint[], lanes smallint[], keys text[], subjects text[], ordering_keys text[], headers jsonb[], payloads bytea[], is_moved boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.arrived_keys(scope text, keys text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.arrived_keys(scope text, keys text[]) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.ask_saga(saga_id bigint, step text, kind text, reply jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.attempt_failed(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, reason text, subject text, pause double precision, pause_max double precision, failures bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.attempt_failed(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, reason text, subject text, pause double precision, pause_max double precision, failures bigint) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.backlog() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.before_edit(key text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.begin_attempt(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, subject text, attempts_max bigint, is_alone boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.begin_attempt(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, subject text, attempts_max bigint, is_alone boolean) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.begin_canary(kind text, lanes smallint[], ids bigint[], watch_seconds double precision, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.begin_canary(kind text, lanes smallint[], ids bigint[], watch_seconds double precision, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.begin_effect(scope text, key text, owner uuid, epoch bigint, lease interval, step text, tenant text, OUT answer text, OUT result json, OUT reason text, OUT age interval, OUT is_own boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.begin_effect(scope text, key text, owner uuid, epoch bigint, lease interval, step text, tenant text, OUT answer text, OUT result json, OUT reason text, OUT age interval, OUT is_own boolean) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.begin_effect_again(scope text, key text, owner uuid, epoch bigint, lease interval, step text, tenant text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.begin_effect_again(scope text, key text, owner uuid, epoch bigint, lease interval, step text, tenant text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.bound_kept() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.bounded_reason(reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.bury(scope text, key text, payload bytea, reason text, subject text, headers jsonb, tenant text, message_id bigint, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, committed_by xid8) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.bury(scope text, key text, payload bytea, reason text, subject text, headers jsonb, tenant text, message_id bigint, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, committed_by xid8) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.bury_failing(scope text, tenant text, key text, payload bytea, subject text, headers jsonb, stream text, stream_sequence bigint, stored_at timestamp with time zone, failures bigint, reason text, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.bury_failing(scope text, tenant text, key text, payload bytea, subject text, headers jsonb, stream text, stream_sequence bigint, stored_at timestamp with time zone, failures bigint, reason text, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.bury_leased(scope text, key text, owner uuid, epoch bigint, payload bytea, reason text, subject text, headers jsonb, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.bury_leased(scope text, key text, owner uuid, epoch bigint, payload bytea, reason text, subject text, headers jsonb, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint) TO oncebox_consumer;

GRANT SELECT ON TABLE oncebox.canary_row TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.canary_row_name(r oncebox.canary_row) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.canary_verdict(r oncebox.canary_row, OUT verdict text, OUT why text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.cancel_attempt(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.cancel_attempt(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.cancel_delayed(key text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.cancel_delayed(key text) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.cancel_delayed_messages(keys text[], by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.cancel_delayed_messages(keys text[], by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.change_inbox_mode(inbox_scope text, new_mode text, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.change_inbox_mode(inbox_scope text, new_mode text, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.change_scope(scope text, retention interval, dead_letter_retention interval, kind text, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.change_scope(scope text, retention interval, dead_letter_retention interval, kind text, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.check_barrier(barrier text, tenant text, key text, flag boolean, attempt integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_edit(old_headers jsonb, old_payload bytea, headers jsonb, payload bytea, seen bytea, note text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_end(state text, barrier text, key text, attempt integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_enqueued(wanted_key text, wanted_subject text, wanted_payload bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_expected_inbox(scope text, within_seconds double precision, is_unseen boolean, place text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.check_expected_inbox(scope text, within_seconds double precision, is_unseen boolean, place text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.check_headers(headers jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_inbox_names(scope text, tenant text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_key(key text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.check_key(key text) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.check_lease(owner uuid, lease interval) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_message(key text, subject text, ordering_key text, headers jsonb, payload bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_ordering_key(ordering_key text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_payload(payload bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_saga_data(type text, plan jsonb, data jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_skipped_reply(saga_id bigint, step text, reply jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_stored_at(stored_at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_subject(subject text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.check_turn(this_turn bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.claim(scope text, key text, payload bytea, tenant text, message_id bigint, OUT answer text, OUT outcome json, OUT reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.claim(scope text, key text, payload bytea, tenant text, message_id bigint, OUT answer text, OUT outcome json, OUT reason text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.claim_batch(scope text, tenants text[], keys text[], fingerprints bytea[], message_ids bigint[], time_limit interval, OUT place integer, OUT answer text, OUT outcome json) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.claim_batch(scope text, tenants text[], keys text[], fingerprints bytea[], message_ids bigint[], time_limit interval, OUT place integer, OUT answer text, OUT outcome json) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.claim_edit_once() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.claim_key(scope text, tenant text, key text, fingerprint bytea, message_id bigint, status text, ending bytea, OUT answer text, OUT outcome bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.claim_keys(scope text, locks bigint[], tenants text[], keys text[], fingerprints bytea[], message_ids bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.claim_keys(scope text, locks bigint[], tenants text[], keys text[], fingerprints bytea[], message_ids bigint[]) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.claim_leased(scope text, key text, payload bytea, owner uuid, lease interval, tenant text, message_id bigint, is_alone boolean, OUT answer text, OUT outcome json, OUT reason text, OUT epoch bigint, OUT attempts integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.claim_leased(scope text, key text, payload bytea, owner uuid, lease interval, tenant text, message_id bigint, is_alone boolean, OUT answer text, OUT outcome json, OUT reason text, OUT epoch bigint, OUT attempts integer) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.claim_request(scope text, tenant text, client_key text, fingerprint bytea, OUT answer text, OUT key text, OUT status integer, OUT headers jsonb, OUT body bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.claim_request(scope text, tenant text, client_key text, fingerprint bytea, OUT answer text, OUT key text, OUT status integer, OUT headers jsonb, OUT body bytea) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.consumer_place(stream text, durable text, stream_created text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.consumer_place(stream text, durable text, stream_created text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.content_digest(headers jsonb, payload bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.content_digest(headers jsonb, payload bytea) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.continue_canary(canary bigint, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.continue_canary(canary bigint, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.continue_consumer(stream text, durable text, stream_created text, next_sequence bigint, took_over boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.continue_consumer(stream text, durable text, stream_created text, next_sequence bigint, took_over boolean) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.count_lost(lane smallint, stream text, since timestamp with time zone, OUT messages bigint, OUT milestone timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.count_lost(lane smallint, stream text, since timestamp with time zone, OUT messages bigint, OUT milestone timestamp with time zone) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.count_segment(number smallint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.count_segment(number smallint) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.dead_letter_event() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.decode_response(stored bytea, OUT status integer, OUT headers jsonb, OUT body bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.decode_response(stored bytea, OUT status integer, OUT headers jsonb, OUT body bytea) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.delete_placeholders(ids bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.disable_events(kinds text[], by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.disable_events(kinds text[], by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.discard_backlog(by text, note text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.discard_letters(ids bigint[], by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.discard_letters(ids bigint[], by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.drain_segments() FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.drain_segments() TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.edit_dead(lane smallint, id bigint, headers jsonb, payload bytea, seen bytea, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.edit_dead(lane smallint, id bigint, headers jsonb, payload bytea, seen bytea, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.edit_key(key text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.edit_letter(id bigint, headers jsonb, payload bytea, seen bytea, by text, note text, OUT outbox text, OUT key text, OUT subject text, OUT edited_headers text, OUT edited_payload bytea, OUT number bigint, OUT is_in_line boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.edit_letter(id bigint, headers jsonb, payload bytea, seen bytea, by text, note text, OUT outbox text, OUT key text, OUT subject text, OUT edited_headers text, OUT edited_payload bytea, OUT number bigint, OUT is_in_line boolean) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.edit_reason(new_key text, old_headers jsonb, old_payload bytea, headers jsonb, payload bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.edit_root(key text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.empty_segment(retention_seconds double precision, OUT number smallint, OUT messages bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.empty_segment(retention_seconds double precision, OUT number smallint, OUT messages bigint) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.enable_events(kinds text[], by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.enable_events(kinds text[], by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.encode_response(status integer, headers jsonb, body bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.end_action(barrier text, tenant text, key text, had_effect boolean, attempt integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.end_action(barrier text, tenant text, key text, had_effect boolean, attempt integer) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.end_compensation(barrier text, tenant text, key text, has_undone boolean, attempt integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.end_compensation(barrier text, tenant text, key text, has_undone boolean, attempt integer) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.end_effect(scope text, key text, owner uuid, epoch bigint, lease interval, step text, status text, result json, reason text, tenant text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.end_effect(scope text, key text, owner uuid, epoch bigint, lease interval, step text, status text, result json, reason text, tenant text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.end_in_line(scope text, id bigint, since bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.end_in_line(scope text, id bigint, since bigint) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.end_leased(scope text, tenant text, key text, owner uuid, epoch bigint, status text, outcome bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.end_leased(scope text, tenant text, key text, owner uuid, epoch bigint, status text, outcome bytea) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.end_turn(span_seconds double precision, wait_ms integer, pause_seconds double precision) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.end_turn(span_seconds double precision, wait_ms integer, pause_seconds double precision) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.ended_before_edit(scope text, tenant text, key text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.enqueue(key text, subject text, payload bytea, headers jsonb, ordering_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.enqueue(key text, subject text, payload bytea, headers jsonb, ordering_key text) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.enqueue_all(keys text[], subjects text[], payloads bytea[], headers jsonb[], ordering_keys text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.enqueue_all(keys text[], subjects text[], payloads bytea[], headers jsonb[], ordering_keys text[]) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.enqueue_at(key text, subject text, payload bytea, not_before timestamp with time zone, headers jsonb, ordering_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.enqueue_at(key text, subject text, payload bytea, not_before timestamp with time zone, headers jsonb, ordering_key text) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.enqueue_json(key text, subject text, payload jsonb, headers jsonb, ordering_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.enqueue_json(key text, subject text, payload jsonb, headers jsonb, ordering_key text) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.enqueue_json_at(key text, subject text, payload jsonb, not_before timestamp with time zone, headers jsonb, ordering_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.enqueue_json_at(key text, subject text, payload jsonb, not_before timestamp with time zone, headers jsonb, ordering_key text) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.enter_action(barrier text, tenant text, key text, is_leased boolean, attempt integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.enter_action(barrier text, tenant text, key text, is_leased boolean, attempt integer) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.enter_compensation(barrier text, tenant text, key text, is_leased boolean, attempt integer, scope text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.enter_compensation(barrier text, tenant text, key text, is_leased boolean, attempt integer, scope text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.expect(subject text, scope text, within_seconds double precision, inbox_database text, is_unseen boolean, operator text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.expect(subject text, scope text, within_seconds double precision, inbox_database text, is_unseen boolean, operator text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.expect_no_more(subject text, scope text, operator text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.expect_no_more(subject text, scope text, operator text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.expectations_due() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.expected_messages(expectation bigint, first_xact xid8, end_xact xid8) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.expected_messages(expectation bigint, first_xact xid8, end_xact xid8) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.find_saga(type text, business_id text, key text, began_with bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.find_saga(type text, business_id text, key text, began_with bytea) TO oncebox_producer;
GRANT ALL ON FUNCTION oncebox.find_saga(type text, business_id text, key text, began_with bytea) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.find_unsent(retention_seconds double precision, most integer, OUT number smallint, OUT unsent bigint, OUT unsent_id bigint, OUT is_done boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.find_unsent(retention_seconds double precision, most integer, OUT number smallint, OUT unsent bigint, OUT unsent_id bigint, OUT is_done boolean) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.finish_leased(scope text, key text, owner uuid, epoch bigint, outcome json, status text, tenant text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.finish_leased(scope text, key text, owner uuid, epoch bigint, outcome json, status text, tenant text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.follow_lines(scope text, behind_max integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.follow_lines(scope text, behind_max integer) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.follower(lane smallint, ordering_key text, id bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.forget_attempts(scope text, key text, tenant text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.forget_attempts(scope text, key text, tenant text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.forget_emptied(most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.forget_emptied(most integer) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.forget_failing(scope text, tenant text, key text, message text, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.forget_failing(scope text, tenant text, key text, message text, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.forget_kept() FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.forget_kept() TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.forget_tries(scope text, tenant text, key text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.give_up_leased(scope text, tenant text, key text, owner uuid, epoch bigint, subject text, headers jsonb, payload bytea, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.give_up_parked(lane smallint, ids bigint[], by text, note text, kind text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.give_up_parked(lane smallint, ids bigint[], by text, note text, kind text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.readable_headers(headers jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.readable_headers(headers jsonb) TO oncebox_relay;
GRANT ALL ON FUNCTION oncebox.readable_headers(headers jsonb) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.headers_text(headers jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.headers_text(headers jsonb) TO oncebox_relay;
GRANT ALL ON FUNCTION oncebox.headers_text(headers jsonb) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.inbox_copy(stream text, stream_sequence bigint, stored_at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.inbox_fingerprint(payload bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.inbox_lock(scope text, tenant text, key text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.inbox_lock(scope text, tenant text, key text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.inbox_places(most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.inbox_places(most integer) TO oncebox_relay;
GRANT ALL ON FUNCTION oncebox.inbox_places(most integer) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.is_in_store(headers jsonb, payload bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.is_own(row_xmin xid) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.is_plain(key text, subject text, ordering_key text, headers jsonb, payload bytea) FROM PUBLIC;

GRANT SELECT ON TABLE oncebox.canary TO oncebox_operator;

GRANT SELECT(id) ON TABLE oncebox.canary TO oncebox_relay;

GRANT SELECT(state) ON TABLE oncebox.canary TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.judge_canary(INOUT c oncebox.canary) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.keep_line() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.kept_for() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.lane_count() FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.lane_count() TO oncebox_relay;
GRANT ALL ON FUNCTION oncebox.lane_count() TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.lane_of(ordering_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.lane_of(ordering_key text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.lead_consumer(scope text, stream text, durable text, pause interval) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.lead_consumer(scope text, stream text, durable text, pause interval) TO oncebox_consumer;

GRANT SELECT(audit) ON TABLE oncebox.kept TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.letter_obstacle(k oncebox.kept) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.line_of(headers jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.list_delayed(of_key text, most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.list_delayed(of_key text, most integer) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.look_for_unhandled() FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.look_for_unhandled() TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.look_up_copies(scope text, tenants text[], keys text[], fingerprints bytea[]) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.look_up_copies(scope text, tenants text[], keys text[], fingerprints bytea[]) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.look_up_ended(scope text, tenant text, key text, fingerprint bytea, OUT answer text, OUT outcome bytea, OUT is_expired boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.look_up_key(scope text, tenant text, key text, fingerprint bytea, lock bigint, OUT answer text, OUT outcome bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.look_up_leased(scope text, tenant text, key text, fingerprint bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.loss_event() FROM PUBLIC;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.parked TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.parked TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.make_due(lane smallint, ids bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.media_type(content_type text, OUT kind text, OUT boundary text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.media_type(content_type text, OUT kind text, OUT boundary text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.message_obstacle(k oncebox.kept, command text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.move_delayed(messages integer, bytes bigint, after_time timestamp with time zone, after_id bigint, OUT moved bigint, OUT looked_at bigint, OUT last_time timestamp with time zone, OUT last_id bigint, OUT next_seconds double precision) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.move_delayed(messages integer, bytes bigint, after_time timestamp with time zone, after_id bigint, OUT moved bigint, OUT looked_at bigint, OUT last_time timestamp with time zone, OUT last_id bigint, OUT next_seconds double precision) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.next_in_line(scope text, stream text, after bigint, OUT id bigint, OUT since bigint, OUT subject text, OUT headers jsonb, OUT payload bytea, OUT stream_sequence bigint, OUT stored_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.next_in_line(scope text, stream text, after bigint, OUT id bigint, OUT since bigint, OUT subject text, OUT headers jsonb, OUT payload bytea, OUT stream_sequence bigint, OUT stored_at timestamp with time zone) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.note_canary_fault(canary bigint, fault text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.note_canary_fault(canary bigint, fault text) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.note_loss(wanted_lane smallint, wanted_stream text, seen bigint, kind text, lost_sequence bigint, proven bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.note_loss(wanted_lane smallint, wanted_stream text, seen bigint, kind text, lost_sequence bigint, proven bigint) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.note_turn() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.note_unhandled(expectation bigint, first_xact xid8, end_xact xid8, lanes smallint[], ids bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.note_unhandled(expectation bigint, first_xact xid8, end_xact xid8, lanes smallint[], ids bigint[]) TO oncebox_relay;

GRANT SELECT ON TABLE oncebox.segment TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.segment TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.old_segments(retention_seconds double precision) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.old_segments(retention_seconds double precision) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.parked_event() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.part_key(key text, part bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.part_key(key text, part bigint) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.pause_delivery(kind text, value text, rate double precision, subjects text[], ordering_key text, by text, note text, ends_at timestamp with time zone, seconds double precision) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.pause_delivery(kind text, value text, rate double precision, subjects text[], ordering_key text, by text, note text, ends_at timestamp with time zone, seconds double precision) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.pause_event() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.pause_left(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.pause_left(scope text, key text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.payload_digest(headers jsonb, payload bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.prune_inbox(first_block bigint, end_block bigint, only_count boolean, by text, note text, OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.prune_inbox(first_block bigint, end_block bigint, only_count boolean, by text, note text, OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.prune_segment(retention_seconds double precision, by text, note text, why text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.prune_segment(retention_seconds double precision, by text, note text, why text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.record_dead_letter(scope text, tenant text, key text, subject text, headers jsonb, payload bytea, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.record_snooze(scope text, tenant text, key text, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, pause interval, longest interval, reason text, OUT snoozes bigint, OUT since timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.record_snooze(scope text, tenant text, key text, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, pause interval, longest interval, reason text, OUT snoozes bigint, OUT since timestamp with time zone) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.refuse_lone_entry() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.refuse_null(no_key boolean, no_subject boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.refuse_uncommitted(row_xmin xid, what text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.refuse_unmarked() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.register_saga(fingerprint text, type text, version integer, graph jsonb, plan jsonb, scope text, reply_to text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.register_saga(fingerprint text, type text, version integer, graph jsonb, plan jsonb, scope text, reply_to text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.register_scope(scope text, retention interval, dead_letter_retention interval, kind text, mode text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.register_scope(scope text, retention interval, dead_letter_retention interval, kind text, mode text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.release_leased(scope text, key text, owner uuid, epoch bigint, pause interval, reason text, is_unknown boolean, is_attempt boolean, tenant text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.release_leased(scope text, key text, owner uuid, epoch bigint, pause interval, reason text, is_unknown boolean, is_attempt boolean, tenant text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.render_payload(template jsonb, document jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.renew_lease(scope text, key text, owner uuid, epoch bigint, lease interval, tenant text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.renew_lease(scope text, key text, owner uuid, epoch bigint, lease interval, tenant text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.repair_ids(OUT stood_at bigint, OUT raised_to bigint, OUT set_aside bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.repair_ids(OUT stood_at bigint, OUT raised_to bigint, OUT set_aside bigint) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.replay_messages(lane smallint, ids bigint[], by text, note text, request text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.replay_messages(lane smallint, ids bigint[], by text, note text, request text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.request_fingerprint(method text, path text, query text, credentials jsonb, content_type text, content bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.request_fingerprint(method text, path text, query text, credentials jsonb, content_type text, content bytea) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.request_key(tenant text, client_key text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.resend_loss(lane smallint, stream text, since timestamp with time zone, by text, note text, OUT messages bigint, OUT milestone timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.resend_loss(lane smallint, stream text, since timestamp with time zone, by text, note text, OUT messages bigint, OUT milestone timestamp with time zone) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.resend_lost(wanted_lane smallint, wanted_stream text, since timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.resend_lost(wanted_lane smallint, wanted_stream text, since timestamp with time zone) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.resend_missing(lane smallint, ids bigint[], by text, note text, why text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.resend_missing(lane smallint, ids bigint[], by text, note text, why text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.resend_place(wanted_lane smallint, wanted_stream text, since timestamp with time zone, OUT sequence bigint, OUT found_at timestamp with time zone, OUT at_number bigint, OUT reached_at timestamp with time zone, OUT goes_back boolean, OUT floor bigint, OUT high bigint, OUT snap pg_snapshot, OUT until_floor bigint, OUT until_high bigint, OUT until_snap pg_snapshot, OUT until_target pg_snapshot, OUT until_after bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.resume_delivery(kind text, value text, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.resume_delivery(kind text, value text, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.retention_max() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.retry_canary_row(c oncebox.canary, r oncebox.canary_row, OUT is_retried boolean, OUT outbox text, OUT key text, OUT subject text, OUT headers text, OUT payload bytea, OUT number bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.retry_dead(lane smallint, ids bigint[], by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.retry_dead(lane smallint, ids bigint[], by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.retry_failing(scope text, tenant text, key text, message text, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.retry_failing(scope text, tenant text, key text, message text, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.retry_in_line(id bigint, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.retry_in_line(id bigint, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.retry_letter(id bigint, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.retry_letter(id bigint, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.retry_parked(lane smallint, ids bigint[], by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.retry_parked(lane smallint, ids bigint[], by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.retry_saga(saga_id bigint, step text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.retry_saga_as(saga_id bigint, step text, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.retry_saga_as(saga_id bigint, step text, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.rewrite_message(lane smallint, id bigint, key text, headers jsonb, payload bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.root_key(client_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.root_key(client_key text) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.running_canaries() FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.running_canaries() TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.segment_is_due(number smallint) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.send_event(kind text, about text, facts jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.settle(scope text, key text, outcome json, tenant text, status text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.settle(scope text, key text, outcome json, tenant text, status text) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.settle_batch(scope text, tenants text[], keys text[], outcomes text[], statuses text[], released_tenants text[], released_keys text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.settle_batch(scope text, tenants text[], keys text[], outcomes text[], statuses text[], released_tenants text[], released_keys text[]) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.settle_key(scope text, tenant text, key text, status text, outcome bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.settle_request(scope text, tenant text, key text, is_rejected boolean, status integer, headers jsonb, body bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.settle_request(scope text, tenant text, key text, is_rejected boolean, status integer, headers jsonb, body bytea) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.sized(field bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.sized(field bytea) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.skip_saga_step(saga_id bigint, step text, reply jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.skip_saga_step_as(saga_id bigint, step text, by text, note text, reply jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.skip_saga_step_as(saga_id bigint, step text, by text, note text, reply jsonb) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.snooze(scope text, key text, pause interval, reason text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, longest interval) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.snooze(scope text, key text, pause interval, reason text, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone, deliveries bigint, longest interval) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.start_saga(type text, business_id text, data jsonb, version integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.start_saga(type text, business_id text, data jsonb, version integer) TO oncebox_producer;
GRANT ALL ON FUNCTION oncebox.start_saga(type text, business_id text, data jsonb, version integer) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.step_key(key text, step text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.step_key(key text, step text) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.stop_canary(canary bigint, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.stop_canary(canary bigint, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.stop_line() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.stream_time(created text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.stuck_event() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.subject_shape(pattern text) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.sweep_barrier(barrier text, keep interval, most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.sweep_barrier(barrier text, keep interval, most integer) TO oncebox_consumer;

GRANT SELECT ON TABLE oncebox.dead_letter TO oncebox_operator;
GRANT SELECT,INSERT,DELETE ON TABLE oncebox.dead_letter TO oncebox_consumer;

GRANT SELECT(scope) ON TABLE oncebox.dead_letter TO oncebox_relay;

GRANT SELECT(stream) ON TABLE oncebox.dead_letter TO oncebox_relay;

GRANT SELECT ON TABLE oncebox.inbox TO oncebox_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.inbox TO oncebox_consumer;

GRANT SELECT(scope) ON TABLE oncebox.inbox TO oncebox_relay;

GRANT SELECT(tenant) ON TABLE oncebox.inbox TO oncebox_relay;

GRANT SELECT(key) ON TABLE oncebox.inbox TO oncebox_relay;

GRANT SELECT(created_at) ON TABLE oncebox.inbox TO oncebox_relay;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.inbox_claim TO oncebox_consumer;

GRANT SELECT(scope) ON TABLE oncebox.inbox_claim TO oncebox_operator;

GRANT SELECT(tenant) ON TABLE oncebox.inbox_claim TO oncebox_operator;

GRANT SELECT(key) ON TABLE oncebox.inbox_claim TO oncebox_operator;

GRANT SELECT(owner) ON TABLE oncebox.inbox_claim TO oncebox_operator;

GRANT SELECT(state) ON TABLE oncebox.inbox_claim TO oncebox_operator;

GRANT SELECT(lease_until) ON TABLE oncebox.inbox_claim TO oncebox_operator;

GRANT SELECT(attempts) ON TABLE oncebox.inbox_claim TO oncebox_operator;

GRANT SELECT(reason) ON TABLE oncebox.inbox_claim TO oncebox_operator;

GRANT SELECT(created_at) ON TABLE oncebox.inbox_claim TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.inbox_scope TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.inbox_scope TO oncebox_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE oncebox.inbox_scope TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.sweep_basis() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.sweep_due(first_block bigint, end_block bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.sweep_inbox(first_block bigint, end_block bigint, only_count boolean, OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.sweep_inboxes(OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint, OUT is_last boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.sweep_inboxes(OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint, OUT is_last boolean) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.sweep_sagas(keep interval, most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.sweep_sagas(keep interval, most integer) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.take_canary_step(canary bigint, OUT moved boolean, OUT letter bigint, OUT outbox text, OUT key text, OUT subject text, OUT headers text, OUT payload bytea, OUT number bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.take_canary_step(canary bigint, OUT moved boolean, OUT letter bigint, OUT outbox text, OUT key text, OUT subject text, OUT headers text, OUT payload bytea, OUT number bigint) TO oncebox_relay;

REVOKE ALL ON FUNCTION oncebox.take_claims_before(scope text, tenant text, key text, owner uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.time_text(seconds double precision) FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.turn_of(part oid) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.turn_of(part oid) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.undo_discard(audit bigint, by text, note text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.undo_discard(audit bigint, by text, note text) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.undo_key(key text) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.undo_key(key text) TO oncebox_producer;

REVOKE ALL ON FUNCTION oncebox.undo_rows(audit bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.undo_rows(audit bigint) TO oncebox_operator;

REVOKE ALL ON FUNCTION oncebox.unhandled_max() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.wait_in_line(scope text, key text, payload bytea, subject text, headers jsonb, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.wait_in_line(scope text, key text, payload bytea, subject text, headers jsonb, tenant text, stream text, stream_sequence bigint, stored_at timestamp with time zone) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.wake_relay() FROM PUBLIC;

REVOKE ALL ON FUNCTION oncebox.write_saga(type text, business_id text, key text, version integer, fingerprint text, data text, late_in double precision, due_in double precision, scope text, began_with bytea, steps text[], states text[], attempts integer[], undo_attempts integer[], in_doubt boolean[], subjects text[], payloads bytea[], undo_subjects text[], undo_payloads bytea[], reasons text[], late_steps_in double precision[]) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.write_saga(type text, business_id text, key text, version integer, fingerprint text, data text, late_in double precision, due_in double precision, scope text, began_with bytea, steps text[], states text[], attempts integer[], undo_attempts integer[], in_doubt boolean[], subjects text[], payloads bytea[], undo_subjects text[], undo_payloads bytea[], reasons text[], late_steps_in double precision[]) TO oncebox_producer;
GRANT ALL ON FUNCTION oncebox.write_saga(type text, business_id text, key text, version integer, fingerprint text, data text, late_in double precision, due_in double precision, scope text, began_with bytea, steps text[], states text[], attempts integer[], undo_attempts integer[], in_doubt boolean[], subjects text[], payloads bytea[], undo_subjects text[], undo_payloads bytea[], reasons text[], late_steps_in double precision[]) TO oncebox_consumer;

REVOKE ALL ON FUNCTION oncebox.written_by(row_xmin xid) FROM PUBLIC;
GRANT ALL ON FUNCTION oncebox.written_by(row_xmin xid) TO oncebox_relay;
GRANT ALL ON FUNCTION oncebox.written_by(row_xmin xid) TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.audit TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.barrier TO oncebox_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.cursor TO oncebox_relay;

GRANT SELECT ON TABLE oncebox.delayed TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.delayed TO oncebox_operator;

GRANT SELECT ON SEQUENCE oncebox.turn TO oncebox_relay;
GRANT SELECT ON SEQUENCE oncebox.turn TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.discarded TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.discarded TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.event_kind TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.expectation TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.expectation TO oncebox_operator;

GRANT SELECT,INSERT,DELETE ON TABLE oncebox.history TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.history TO oncebox_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE oncebox.home TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.home TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.home_here TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.home_here TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.inbox_attempt TO oncebox_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.inbox_attempt TO oncebox_consumer;

GRANT SELECT(scope) ON TABLE oncebox.inbox_attempt TO oncebox_relay;

GRANT SELECT(tenant) ON TABLE oncebox.inbox_attempt TO oncebox_relay;

GRANT SELECT(key) ON TABLE oncebox.inbox_attempt TO oncebox_relay;

GRANT SELECT(message) ON TABLE oncebox.inbox_attempt TO oncebox_relay;

GRANT SELECT(reason) ON TABLE oncebox.inbox_attempt TO oncebox_relay;

GRANT SELECT(failed_at) ON TABLE oncebox.inbox_attempt TO oncebox_relay;

GRANT SELECT,INSERT,DELETE ON TABLE oncebox.inbox_batch TO oncebox_consumer;

GRANT SELECT ON TABLE oncebox.inbox_behind TO oncebox_operator;
GRANT SELECT ON TABLE oncebox.inbox_behind TO oncebox_consumer;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.inbox_effect TO oncebox_consumer;

GRANT SELECT(scope) ON TABLE oncebox.inbox_effect TO oncebox_operator;

GRANT SELECT(tenant) ON TABLE oncebox.inbox_effect TO oncebox_operator;

GRANT SELECT(key) ON TABLE oncebox.inbox_effect TO oncebox_operator;

GRANT SELECT(step) ON TABLE oncebox.inbox_effect TO oncebox_operator;

GRANT SELECT(state) ON TABLE oncebox.inbox_effect TO oncebox_operator;

GRANT SELECT(started_at) ON TABLE oncebox.inbox_effect TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.inbox_snooze TO oncebox_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.inbox_snooze TO oncebox_consumer;

GRANT SELECT(scope) ON TABLE oncebox.inbox_snooze TO oncebox_relay;

GRANT SELECT(due_at) ON TABLE oncebox.inbox_snooze TO oncebox_relay;

GRANT SELECT ON TABLE oncebox.installation TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.installation TO oncebox_operator;

GRANT SELECT,UPDATE ON TABLE oncebox.lane TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.lane TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.lane_cursor TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.lane_cursor TO oncebox_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.late_receipt TO oncebox_relay;

GRANT SELECT(lane) ON TABLE oncebox.late_receipt TO oncebox_operator;

GRANT SELECT(id) ON TABLE oncebox.late_receipt TO oncebox_operator;

GRANT SELECT(replay) ON TABLE oncebox.late_receipt TO oncebox_operator;

GRANT SELECT(stream) ON TABLE oncebox.late_receipt TO oncebox_operator;

GRANT SELECT(sequence) ON TABLE oncebox.late_receipt TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.message_0 TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.message_0 TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.message_1 TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.message_1 TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.message_2 TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.message_2 TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.message_3 TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.message_3 TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.message_4 TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.message_4 TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.message_5 TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.message_5 TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.message_6 TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.message_6 TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.message_7 TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.message_7 TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.log TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.log TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.loss TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.loss TO oncebox_operator;

GRANT UPDATE(ended_at) ON TABLE oncebox.loss TO oncebox_relay;

GRANT SELECT,UPDATE ON TABLE oncebox.maintenance TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.maintenance TO oncebox_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.maintenance_fault TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.maintenance_fault TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.message TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.message TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.message_ids TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.message_ids TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.migration TO oncebox_producer;
GRANT SELECT ON TABLE oncebox.migration TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.migration TO oncebox_operator;
GRANT SELECT ON TABLE oncebox.migration TO oncebox_consumer;

GRANT SELECT,INSERT,DELETE ON TABLE oncebox.milestone TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.milestone TO oncebox_operator;

GRANT UPDATE(reached_at) ON TABLE oncebox.milestone TO oncebox_relay;

GRANT SELECT ON TABLE oncebox.outbox TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.outbox TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.pause TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.pause TO oncebox_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.receipt TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.receipt TO oncebox_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.relay TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.relay TO oncebox_operator;

GRANT SELECT,UPDATE ON SEQUENCE oncebox.relay_asleep TO oncebox_relay;

GRANT SELECT ON TABLE oncebox.replay TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.replay TO oncebox_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE oncebox.reset TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.reset TO oncebox_operator;

GRANT SELECT ON TABLE oncebox.saga TO oncebox_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE oncebox.saga TO oncebox_consumer;

GRANT SELECT(id) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(type) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(business_id) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(key) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(version) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(fingerprint) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(state) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(direction) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(reason) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(deadline_at) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(due_at) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(created_at) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(changed_at) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(finished_at) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT(scope) ON TABLE oncebox.saga TO oncebox_relay;

GRANT SELECT ON TABLE oncebox.saga_definition TO oncebox_operator;
GRANT SELECT ON TABLE oncebox.saga_definition TO oncebox_consumer;

GRANT SELECT(fingerprint) ON TABLE oncebox.saga_definition TO oncebox_relay;

GRANT SELECT(type) ON TABLE oncebox.saga_definition TO oncebox_relay;

GRANT SELECT(version) ON TABLE oncebox.saga_definition TO oncebox_relay;

GRANT SELECT(reply_to) ON TABLE oncebox.saga_definition TO oncebox_relay;

GRANT SELECT ON TABLE oncebox.saga_event TO oncebox_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.saga_event TO oncebox_consumer;

GRANT SELECT ON TABLE oncebox.saga_leader TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.saga_leader TO oncebox_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE oncebox.saga_leader TO oncebox_consumer;

GRANT SELECT ON TABLE oncebox.saga_step TO oncebox_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE oncebox.saga_step TO oncebox_consumer;

GRANT SELECT(saga_id) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(step) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(state) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(attempt) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(undo_attempt) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(subject) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(undo_subject) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(reason) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(deadline_at) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(sent_at) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(answered_at) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(undo_sent_at) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT(undone_at) ON TABLE oncebox.saga_step TO oncebox_relay;

GRANT SELECT,INSERT,UPDATE ON TABLE oncebox.stream TO oncebox_relay;
GRANT SELECT ON TABLE oncebox.stream TO oncebox_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE oncebox.throttle TO oncebox_relay;

GRANT SELECT ON TABLE oncebox.unhandled TO oncebox_operator;
