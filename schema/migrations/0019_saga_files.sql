-- Starting sagas: the part that programs in Rust and start_saga() share, and the sagas that files
-- define. saga/src/file.rs reads the files; a program in any language starts such a saga in its
-- transaction, and `oncebox saga run` leads it.
CREATE FUNCTION {schema}.write_saga(
  type text, business_id text, key text, version integer, fingerprint text, data text, late_in double precision,
  due_in double precision, scope text, began_with bytea, steps text[], states text[], attempts integer[],
  undo_attempts integer[], in_doubt boolean[], subjects text[], payloads bytea[], undo_subjects text[],
  undo_payloads bytea[], reasons text[], late_steps_in double precision[]
) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH started AS (
    INSERT INTO {schema}.saga AS s (type, business_id, key, version, fingerprint, data, began_with, deadline_at, due_at,
                                scope)
    SELECT $1, $2, $3, $4, $5, $6::text::jsonb, $10::bytea,
           clock_timestamp() + make_interval(secs => $7), clock_timestamp() + make_interval(secs => $8), $9
    ON CONFLICT DO NOTHING
    RETURNING s.id
  ),
  sent AS (
    INSERT INTO {schema}.saga_step (saga_id, step, state, attempt, undo_attempt, in_doubt, subject, payload,
                                    undo_subject, undo_payload, reason, deadline_at, sent_at)
    SELECT s.id, g.step, g.state, g.attempt, g.undo_attempt, g.in_doubt, g.subject, g.payload, g.undo_subject,
           g.undo_payload, left(g.reason, 250), clock_timestamp() + make_interval(secs => g.late_in), clock_timestamp()
    FROM started AS s
    CROSS JOIN unnest($11::text[], $12::text[], $13::integer[], $14::integer[], $15::boolean[], $16::text[], $17::bytea[], $18::text[],
                $19::bytea[], $20::text[], $21::float8[])
      AS g (step, state, attempt, undo_attempt, in_doubt, subject, payload, undo_subject, undo_payload, reason, late_in)
  )
  SELECT s.id FROM started AS s
$$;
COMMENT ON FUNCTION {schema}.write_saga IS 'For producers that start sagas, which start.sql of oncebox-saga and start_saga() call: writes a saga and its first steps down, without a right to read or change those of others. Returns its id; no row when its business id has one.';

CREATE FUNCTION {schema}.find_saga(type text, business_id text, key text, began_with bytea) RETURNS TABLE (id bigint, saga_key text, is_same_id boolean, is_same_data boolean)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT s.id, s.key, s.type = $1 AND s.business_id = $2 AS is_same_id,
         s.began_with = $4::bytea AS is_same_data
  FROM {schema}.saga AS s
  WHERE (s.type = $1 AND s.business_id = $2) OR s.key = $3
  ORDER BY is_same_id DESC
  LIMIT 1
$$;
COMMENT ON FUNCTION {schema}.find_saga IS 'For producers that start sagas: the saga that has a business id, or a key, without its data.';

-- Who leads sagas: a process of an orchestrator writes down every 20 seconds which graphs it has.
-- So operators see sagas that no process leads.
CREATE TABLE {schema}.saga_leader (
  scope       text COLLATE "C" NOT NULL,
  fingerprint text COLLATE "C" NOT NULL,
  led_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT saga_leader_pkey PRIMARY KEY (scope, fingerprint)
);
COMMENT ON TABLE {schema}.saga_leader IS 'When a process of an orchestrator last led sagas of a graph.';
COMMENT ON COLUMN {schema}.saga_leader.scope IS 'The scope of the orchestrator.';

-- Writes a graph down, and for a file its plan. A changed file is refused while sagas run that
-- began with another under the same version: they could not go on. Those who start sagas meanwhile
-- hold the lock shared until they commit.
CREATE FUNCTION {schema}.register_saga(
  fingerprint text, type text, version integer, graph jsonb, plan jsonb DEFAULT NULL, scope text DEFAULT NULL,
  reply_to text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  others record;
  unheard record;
BEGIN
  IF register_saga.plan IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('{schema} saga ' || register_saga.type, 0));
    SELECT count(*) AS sagas, count(*) FILTER (WHERE s.scope <> register_saga.scope) AS elsewhere,
      min(s.scope) FILTER (WHERE s.scope <> register_saga.scope) AS scope
    INTO others
    FROM {schema}.saga AS s
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
    FROM {schema}.saga_definition AS d
    JOIN {schema}.saga AS s ON s.type = d.type AND s.fingerprint = d.fingerprint
    WHERE d.scope = register_saga.scope AND d.reply_to <> register_saga.reply_to AND s.finished_at IS NULL
    GROUP BY d.reply_to;
    IF FOUND THEN
      RAISE EXCEPTION 'saga "%", version %: % of its orchestrator in flight have participants that answer on subject "%", and not on "%"',
        register_saga.type, register_saga.version, unheard.sagas, unheard.reply_to, register_saga.reply_to
        USING ERRCODE = 'OB015', HINT = 'Use this subject, --reply-to ' || unheard.reply_to || ', until they have finished: all sagas of an orchestrator share a consumer, which takes one subject.';
    END IF;
    UPDATE {schema}.saga_definition AS d
    SET plan = NULL
    WHERE d.type = register_saga.type AND d.plan IS NOT NULL AND d.fingerprint <> register_saga.fingerprint
      AND (d.version = register_saga.version OR d.scope <> register_saga.scope);
  END IF;
  INSERT INTO {schema}.saga_definition AS d (fingerprint, type, version, graph, plan, scope, reply_to)
  VALUES (register_saga.fingerprint, register_saga.type, register_saga.version, register_saga.graph, register_saga.plan,
          CASE WHEN register_saga.plan IS NOT NULL THEN register_saga.scope END,
          CASE WHEN register_saga.plan IS NOT NULL THEN register_saga.reply_to END)
  ON CONFLICT ON CONSTRAINT saga_definition_pkey DO UPDATE
  SET graph = excluded.graph, plan = excluded.plan, scope = excluded.scope, reply_to = excluded.reply_to
  WHERE excluded.plan IS NOT NULL
    AND (d.graph, d.plan, d.scope, d.reply_to) IS DISTINCT FROM (excluded.graph, excluded.plan, excluded.scope, excluded.reply_to);
END $$;
COMMENT ON FUNCTION {schema}.register_saga IS 'For orchestrators: writes a graph down, and for a file the plan by which start_saga() starts its sagas. Error OB015 when sagas are in flight that began with another file under this version, or whose answers go to another subject.';

-- The payload of a command, from the form that saga/src/file/template.rs writes.
CREATE FUNCTION {schema}.render_payload(template jsonb, document jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
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
    RETURN (SELECT coalesce(jsonb_agg({schema}.render_payload(e.value, document) ORDER BY e.ordinality), '[]')
            FROM jsonb_array_elements(template -> 'array') WITH ORDINALITY AS e);
  END IF;
  RETURN (SELECT coalesce(jsonb_object_agg(f.key, {schema}.render_payload(f.value, document)), '{}')
          FROM jsonb_each(template -> 'object') AS f);
END $$;

-- Refuses data that a file does not read.
CREATE FUNCTION {schema}.check_saga_data(type text, plan jsonb, data jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
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

CREATE FUNCTION {schema}.start_saga(type text, business_id text, data jsonb, version integer DEFAULT NULL)
RETURNS TABLE (id bigint, key text, is_new boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  saga_key text := {schema}.step_key({schema}.root_key(start_saga.business_id), start_saga.type);
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
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('{schema} saga ' || start_saga.type, 0));
  SELECT d.* INTO definition
  FROM {schema}.saga_definition AS d
  WHERE d.type = start_saga.type AND d.plan IS NOT NULL AND (start_saga.version IS NULL OR d.version = start_saga.version)
  ORDER BY d.version DESC
  LIMIT 1;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no file of saga "%"%', start_saga.type, coalesce(', version ' || start_saga.version, '')
      USING ERRCODE = 'OB015', HINT = 'Run `oncebox saga apply FILE`, or `oncebox saga run FILE`. A saga of a program in Rust is started by it.';
  END IF;
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    -- An older snapshot may show a file that was replaced: this fails then.
    PERFORM FROM {schema}.saga_definition AS d WHERE d.fingerprint = definition.fingerprint FOR SHARE;
  END IF;
  PERFORM {schema}.check_saga_data(start_saga.type, definition.plan, start_saga.data);
  IF octet_length(saga_key) + 1 + (definition.plan ->> 'longest_step')::integer + octet_length(':#4294967295:undo:reply') > 255 THEN
    RAISE EXCEPTION 'key "%" is too long for those of the commands', saga_key
      USING ERRCODE = 'OB002', HINT = 'Use a shorter business id.';
  END IF;
  SELECT array_agg(c ->> 'step' ORDER BY o) AS steps, array_agg(c ->> 'subject' ORDER BY o) AS subjects,
         array_agg(convert_to({schema}.render_payload(c -> 'payload', document)::text, 'UTF8') ORDER BY o) AS payloads,
         array_agg((c ->> 'late_in')::float8 ORDER BY o) AS late_in, min((c ->> 'late_in')::float8) AS soonest,
         count(*)::integer AS total
  INTO first
  FROM jsonb_array_elements(definition.plan -> 'first') WITH ORDINALITY AS e (c, o);
  new_id := (SELECT w FROM {schema}.write_saga(
    start_saga.type, start_saga.business_id, saga_key, definition.version, definition.fingerprint, document::text,
    (definition.plan ->> 'late_in')::float8, least(first.soonest, (definition.plan ->> 'late_in')::float8), definition.scope,
    began_with, first.steps, array_fill('sent'::text, ARRAY[first.total]), array_fill(1, ARRAY[first.total]),
    array_fill(0, ARRAY[first.total]), array_fill(false, ARRAY[first.total]), first.subjects, first.payloads,
    array_fill(NULL::text, ARRAY[first.total]), array_fill(NULL::bytea, ARRAY[first.total]),
    array_fill(NULL::text, ARRAY[first.total]), first.late_in) AS w);
  IF new_id IS NULL THEN
    SELECT * INTO standing
    FROM {schema}.find_saga(start_saga.type, start_saga.business_id, saga_key, began_with);
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
    IF {schema}.enqueue({schema}.step_key(saga_key, first.steps[i]), first.subjects[i], first.payloads[i],
                        jsonb_build_object('Oncebox-Reply-To', definition.reply_to)) IS NULL THEN
      RAISE EXCEPTION 'command "%:%" was sent before, for a saga that is gone', saga_key, first.steps[i]
        USING ERRCODE = 'OB016', HINT = 'Start this one with a business id that was never used.';
    END IF;
  END LOOP;
  RETURN QUERY SELECT new_id, saga_key, true;
END $$;
COMMENT ON FUNCTION {schema}.start_saga IS 'Start a saga of a file in this transaction: it exists, and its first commands are sent, when this commits. Once for each business id: with the same data it returns the one that is there, and is_new is false. version: that of the file, NULL for the newest. Error OB015 when no file of the type is applied, OB016 when the business id began with other data or was used before.';
