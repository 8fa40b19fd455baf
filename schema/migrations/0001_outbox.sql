-- The outbox: keys, the message log, the lanes with their cursors, and the functions that producers call.
-- Tables are private; the functions are the interface. ARCHITECTURE.md and relay/src/cursor.rs explain the cursor.
-- SQLSTATEs of our own: OB001 key conflict, OB002 key, OB003 subject, OB004 headers, OB005 payload,
-- OB006 ordering key, OB007 arguments of the bulk form.

-- Keys ---------------------------------------------------------------------------------------------------------

-- The grammar of a whole key, as in oncebox_schema::Key. Bounded repetitions are slow in PostgreSQL's regular
-- expressions, so they run only on keys long enough to break a limit. Called by CHECK constraints, hence true or
-- an error that says which limit was broken, never false.
CREATE FUNCTION {schema}.check_key(key text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
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
      USING ERRCODE = 'OB002', HINT = format('Escape a client''s key with %s.root_key(text), add steps with step_key(key, step).', '{name}');
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
END $$;

-- A client's key, escaped so that ":" only ever separates levels.
CREATE FUNCTION {schema}.root_key(client_key text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  escaped text := replace(replace(client_key, '%', '%25'), ':', '%3A');
BEGIN
  IF octet_length(client_key) NOT BETWEEN 1 AND 128 THEN
    RAISE EXCEPTION 'root key is % bytes long; the limit is 1 to 128 bytes', octet_length(client_key)
      USING ERRCODE = 'OB002';
  END IF;
  PERFORM {schema}.check_key(escaped);
  RETURN escaped;
END $$;

CREATE FUNCTION {schema}.step_key(key text, step text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF step COLLATE "C" !~ '^[a-z0-9][a-z0-9._-]*$' OR step = 'undo' THEN
    RAISE EXCEPTION 'step "%" does not match [a-z0-9][a-z0-9._-]{0,63}, or is the reserved word "undo"', step
      USING ERRCODE = 'OB002';
  END IF;
  PERFORM {schema}.check_key(key || ':' || step);
  RETURN key || ':' || step;
END $$;

CREATE FUNCTION {schema}.part_key(key text, part bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF part NOT BETWEEN 0 AND 4294967295 THEN
    RAISE EXCEPTION 'part % is not between 0 and 4294967295', part USING ERRCODE = 'OB002';
  END IF;
  PERFORM {schema}.check_key(key || ':#' || part);
  RETURN key || ':#' || part;
END $$;

CREATE FUNCTION {schema}.undo_key(key text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}.check_key(key || ':undo');
  RETURN key || ':undo';
END $$;

-- Subjects, ordering keys, headers -----------------------------------------------------------------------------

CREATE FUNCTION {schema}.check_subject(subject text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  IF octet_length(subject) > 255
     OR subject COLLATE "C" !~ '^[!#%-)+-\-/-=?-~][!-)+-\-/-=?-~]*(\.[!-)+-\-/-=?-~]+)*$'
     OR subject LIKE '\_INBOX.%' THEN
    RAISE EXCEPTION 'subject "%" is not 1 to 255 bytes of visible ASCII in non-empty tokens without "*" and ">"', left(subject, 300)
      USING ERRCODE = 'OB003', HINT = 'Subjects that begin with "$" or "_INBOX." belong to NATS itself.';
  END IF;
  RETURN true;
END $$;

CREATE FUNCTION {schema}.check_ordering_key(ordering_key text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  IF octet_length(ordering_key) NOT BETWEEN 1 AND 255 OR ordering_key COLLATE "C" !~ '^[!-~]+$' THEN
    RAISE EXCEPTION 'ordering key "%" is not 1 to 255 bytes of visible ASCII', left(ordering_key, 300)
      USING ERRCODE = 'OB006', HINT = 'Leave it NULL for messages that need no order.';
  END IF;
  RETURN true;
END $$;

-- Header names that the relay sets itself are refused, and so are all Nats- names: they command the broker.
CREATE FUNCTION {schema}.check_headers(headers jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  header record;
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
    IF header.name COLLATE "C" !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' OR octet_length(header.name) > 128 THEN
      RAISE EXCEPTION 'header name "%" is not 1 to 128 characters of an HTTP token', left(header.name, 300) USING ERRCODE = 'OB004';
    END IF;
    IF header.name COLLATE "C" ~* '^(nats-|oncebox-|(x-)?idempotency-key$)' THEN
      RAISE EXCEPTION 'header "%" is set by the relay or commands the broker', header.name USING ERRCODE = 'OB004';
    END IF;
    IF jsonb_typeof(header.value) <> 'string' OR header.value #>> '{}' COLLATE "C" ~ '[\x01-\x08\x0a-\x1f\x7f]' THEN
      RAISE EXCEPTION 'value of header "%" is not a string without control characters', header.name USING ERRCODE = 'OB004';
    END IF;
  END LOOP;
  RETURN true;
END $$;

-- Errors name the size only: a payload must never reach a log.
CREATE FUNCTION {schema}.check_payload(payload bytea) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  IF octet_length(payload) > 8388608 THEN
    RAISE EXCEPTION 'payload is % bytes long; the limit is 8388608 bytes (8 MiB)', octet_length(payload)
      USING ERRCODE = 'OB005', HINT = 'Store large bodies elsewhere and send a reference. The limit of nats-server is 1 MiB by default.';
  END IF;
  RETURN true;
END $$;

-- The log ------------------------------------------------------------------------------------------------------

CREATE TABLE {schema}.message (
  id           bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
  lane         smallint NOT NULL,
  xact         xid8 NOT NULL DEFAULT pg_current_xact_id(),
  key          text NOT NULL CONSTRAINT message_key_grammar CHECK ({schema}.check_key(key)),
  subject      text NOT NULL CONSTRAINT message_subject_grammar CHECK ({schema}.check_subject(subject)),
  ordering_key text CONSTRAINT message_ordering_key_grammar CHECK ({schema}.check_ordering_key(ordering_key)),
  headers      jsonb NOT NULL DEFAULT '{}' CONSTRAINT message_headers_grammar CHECK ({schema}.check_headers(headers)),
  payload      bytea NOT NULL CONSTRAINT message_payload_size CHECK ({schema}.check_payload(payload)),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT message_pkey PRIMARY KEY (lane, id),
  CONSTRAINT message_key_unique UNIQUE (key)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
COMMENT ON TABLE {schema}.message IS 'The message log. Private: append-only, written by enqueue(), read by the relay.';

-- The late rows of a lane, found by transaction; id last, so that newer rows are skipped inside the index.
CREATE INDEX message_lane_xact_id ON {schema}.message (lane, xact, id);

-- One row per lane, never updated: what a relay locks. Row locks are kept in place.
CREATE TABLE {schema}.lane (
  lane smallint PRIMARY KEY
);
COMMENT ON TABLE {schema}.lane IS 'The lanes. A relay that works on a lane has its row locked.';

-- Where each lane stands: the row with the highest number counts. Settling inserts the next row and deletes the one
-- before. An updated row would grow a version with every batch under a long transaction, and every claim would walk
-- them all; the end of an index is found at once whatever is dead before it.
CREATE TABLE {schema}.cursor (
  lane              smallint NOT NULL,
  number            bigint NOT NULL,
  floor             bigint NOT NULL DEFAULT 0,
  high              bigint NOT NULL DEFAULT 0,
  snap              pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
  target            pg_snapshot,
  after             bigint,
  reset_until       bigint,
  system_identifier bigint NOT NULL,
  settled_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT cursor_pkey PRIMARY KEY (lane, number),
  CONSTRAINT cursor_ids CHECK (floor >= 0 AND high >= 0),
  CONSTRAINT cursor_drain CHECK ((target IS NULL) = (after IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE {schema}.cursor IS 'The cursor of each lane: every message with id <= high that is visible in snap is settled.';
COMMENT ON COLUMN {schema}.cursor.floor IS 'Messages up to here are settled whatever their xact says.';
COMMENT ON COLUMN {schema}.cursor.target IS 'Set while a large set of late messages is drained in parts: what was visible here is due; after is the last id sent.';
COMMENT ON COLUMN {schema}.cursor.reset_until IS 'Set while messages of another cluster (a restored dump) are drained: up to this id, xact means nothing here.';

INSERT INTO {schema}.lane (lane)
SELECT n
FROM generate_series(0, {lanes} - 1) AS n;

INSERT INTO {schema}.cursor (lane, number, system_identifier)
SELECT l.lane, 1, c.system_identifier
FROM {schema}.lane AS l, pg_control_system() AS c;

-- The row of each lane that counts.
CREATE VIEW {schema}.lane_cursor AS
SELECT l.lane, c.number, c.floor, c.high, c.snap, c.target, c.after, c.reset_until, c.system_identifier, c.settled_at
FROM {schema}.lane AS l
CROSS JOIN LATERAL (
  SELECT *
  FROM {schema}.cursor AS newest
  WHERE newest.lane = l.lane
  ORDER BY newest.number DESC
  LIMIT 1
) AS c;

-- The lane of a message: all messages of one ordering key share a lane.
CREATE FUNCTION {schema}.lane_of(ordering_key text) RETURNS smallint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN mod(hashtextextended(ordering_key, 0) & 1048575, {lanes})::smallint;

CREATE TABLE {schema}.parked (
  lane            smallint NOT NULL,
  id              bigint NOT NULL,
  ordering_key    text,
  attempts        integer NOT NULL,
  next_attempt_at timestamptz,
  dead_at         timestamptz,
  error           text NOT NULL,
  parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT parked_pkey PRIMARY KEY (lane, id),
  CONSTRAINT parked_attempts CHECK (attempts >= 0),
  CONSTRAINT parked_error CHECK (octet_length(error) <= 1000),
  CONSTRAINT parked_state CHECK (dead_at IS NULL OR next_attempt_at IS NULL)
);
COMMENT ON TABLE {schema}.parked IS 'Messages set aside: next_attempt_at set = tried again then; dead_at set = dead; neither = waits behind its ordering key.';
CREATE INDEX parked_due ON {schema}.parked (lane, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX parked_ordering_key ON {schema}.parked (lane, ordering_key, id) WHERE ordering_key IS NOT NULL;

-- 1 while a relay sleeps, else 0. A sequence, because it is updated in place: a row would grow versions under a
-- long transaction, and every producer would walk them.
CREATE SEQUENCE {schema}.relay_asleep AS smallint MINVALUE 0 MAXVALUE 1 START 0 CACHE 1;

-- Producers ----------------------------------------------------------------------------------------------------

-- After an enqueue: wake a relay that sleeps. Clearing the mark here means that one producer pays for NOTIFY, not
-- every producer while no relay is there to clear it. Polling remains the truth; this is a hint and may be lost.
CREATE FUNCTION {schema}.wake_relay() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM setval('{schema}.relay_asleep', 0);
  PERFORM pg_notify('{name}', '');
END $$;

-- What was not inserted must be this very message; else the key is used twice for different things.
CREATE FUNCTION {schema}.check_enqueued(wanted_key text, wanted_subject text, wanted_payload bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stored record;
BEGIN
  SELECT m.subject, m.payload INTO stored FROM {schema}.message AS m WHERE m.key = wanted_key;
  IF NOT FOUND THEN
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
END $$;

-- Asked before the insert: PostgreSQL's own error for a NULL prints the row, and with it the payload.
CREATE FUNCTION {schema}.refuse_null(no_key boolean, no_subject boolean) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF no_key THEN
    RAISE EXCEPTION 'key is null' USING ERRCODE = 'OB002';
  ELSIF no_subject THEN
    RAISE EXCEPTION 'subject is null' USING ERRCODE = 'OB003';
  END IF;
  RAISE EXCEPTION 'payload is null; the limit is 0 to 8388608 bytes' USING ERRCODE = 'OB005';
END $$;

CREATE FUNCTION {schema}.enqueue(
  key text, subject text, payload bytea, headers jsonb DEFAULT '{}', ordering_key text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  new_id bigint;
BEGIN
  IF enqueue.key IS NULL OR enqueue.subject IS NULL OR enqueue.payload IS NULL THEN
    PERFORM {schema}.refuse_null(enqueue.key IS NULL, enqueue.subject IS NULL);
  END IF;
  -- A transaction that a crash can undo must not be seen by the relay: make its commit durable.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  FOR attempt IN 1 .. 3 LOOP
    INSERT INTO {schema}.message AS m (lane, key, subject, ordering_key, headers, payload)
    VALUES ({schema}.lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
            enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload)
    ON CONFLICT ON CONSTRAINT message_key_unique DO NOTHING
    RETURNING m.id INTO new_id;
    IF FOUND THEN
      IF (SELECT s.last_value FROM {schema}.relay_asleep AS s) = 1 THEN
        PERFORM {schema}.wake_relay();
      END IF;
      RETURN new_id;
    END IF;
    -- Not found here means that retention deleted it between the two statements: insert again.
    IF {schema}.check_enqueued(enqueue.key, enqueue.subject, enqueue.payload) THEN
      RETURN NULL;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'key "%" was deleted three times while it was enqueued', enqueue.key USING ERRCODE = '40001';
END $$;
COMMENT ON FUNCTION {schema}.enqueue IS 'Enqueue a message in this transaction. Returns its id, NULL when this very message is already enqueued; error OB001 when the key names another message.';

CREATE FUNCTION {schema}.enqueue_json(
  key text, subject text, payload jsonb, headers jsonb DEFAULT '{}', ordering_key text DEFAULT NULL
) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN {schema}.enqueue(key, subject, convert_to(payload::text, 'UTF8'), headers, ordering_key);

-- The bulk form: one row out for each row in, in the same order; ids are drawn in that order.
CREATE FUNCTION {schema}.enqueue_all(
  keys text[], subjects text[], payloads bytea[], headers jsonb[] DEFAULT NULL, ordering_keys text[] DEFAULT NULL
) RETURNS TABLE (key text, id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  total integer := coalesce(cardinality(keys), 0);
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
  IF array_position(keys, NULL) IS NOT NULL OR array_position(subjects, NULL) IS NOT NULL
     OR array_position(payloads, NULL) IS NOT NULL THEN
    PERFORM {schema}.refuse_null(array_position(keys, NULL) IS NOT NULL, array_position(subjects, NULL) IS NOT NULL);
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  RETURN QUERY
  WITH given AS (
    SELECT g.key, g.subject, g.payload, coalesce(g.headers, '{}') AS headers, g.ordering_key, g.n
    FROM unnest(keys, subjects, payloads, enqueue_all.headers, ordering_keys)
      WITH ORDINALITY AS g (key, subject, payload, headers, ordering_key, n)
  ),
  inserted AS (
    INSERT INTO {schema}.message AS m (lane, key, subject, ordering_key, headers, payload)
    SELECT {schema}.lane_of(coalesce(g.ordering_key, g.key)), g.key, g.subject, g.ordering_key, g.headers, g.payload
    FROM given AS g
    ORDER BY g.n
    ON CONFLICT ON CONSTRAINT message_key_unique DO NOTHING
    RETURNING m.key, m.id
  )
  -- A key that stands twice in one call gets its id at its first place.
  SELECT g.key, CASE WHEN row_number() OVER (PARTITION BY g.key ORDER BY g.n) = 1 THEN i.id END
  FROM given AS g
  LEFT JOIN inserted AS i ON i.key = g.key
  ORDER BY g.n;
  -- A new statement sees what the one above inserted or found.
  PERFORM {schema}.check_enqueued(g.key, g.subject, g.payload)
  FROM unnest(keys, subjects, payloads) AS g (key, subject, payload);
  IF total > 0 AND (SELECT s.last_value FROM {schema}.relay_asleep AS s) = 1 THEN
    PERFORM {schema}.wake_relay();
  END IF;
END $$;
