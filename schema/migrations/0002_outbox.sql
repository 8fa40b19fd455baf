-- The outbox: the message log, the lanes with their cursors, and enqueue(). ARCHITECTURE.md and
-- relay/src/delivery/cursor.rs explain the cursor.

-- The ids of messages, in all segments.
CREATE SEQUENCE {schema}.message_id_seq CACHE 1;

-- The log is a ring of eight segments: retention empties one with TRUNCATE, which costs nothing per
-- message. 0013_segments.sql turns the ring; docs/design/growth.md says why it is as it is. Keys
-- compare by their bytes, in any collation of the database: an operating system that sorts
-- differently after an upgrade must not break the index that keeps keys unique. The functions that
-- write rows check the grammar: CHECK constraints that call them would cost each row a third more.
CREATE TABLE {schema}.message_0 (
  id           bigint NOT NULL DEFAULT nextval('{schema}.message_id_seq'),
  lane         smallint NOT NULL,
  xact         xid8 NOT NULL DEFAULT pg_current_xact_id(),
  key          text COLLATE "C" NOT NULL,
  subject      text NOT NULL,
  ordering_key text,
  headers      jsonb NOT NULL DEFAULT '{}',
  payload      bytea NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT message_0_pkey PRIMARY KEY (lane, id),
  CONSTRAINT message_0_key_unique UNIQUE (key)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
COMMENT ON TABLE {schema}.message_0 IS 'A segment of the message log. Private: append-only but for edit_dead(), written by enqueue(), read by the relay.';

-- The late rows of a lane, found by transaction; id last, so that the index skips newer rows.
CREATE INDEX message_0_lane_xact_id ON {schema}.message_0 (lane, xact, id);

DO $segments$
DECLARE
  log text := '';
BEGIN
  FOR n IN 1 .. 7 LOOP
    EXECUTE format($segment$
      CREATE TABLE {schema}.message_%1$s (
        LIKE {schema}.message_0 INCLUDING DEFAULTS,
        CONSTRAINT message_%1$s_pkey PRIMARY KEY (lane, id),
        CONSTRAINT message_%1$s_key_unique UNIQUE (key)
      ) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
      CREATE INDEX message_%1$s_lane_xact_id ON {schema}.message_%1$s (lane, xact, id);
      COMMENT ON TABLE {schema}.message_%1$s IS 'A segment of the message log, as message_0.'
    $segment$, n);
  END LOOP;
  SELECT string_agg(format(
    'SELECT id, lane, xact, key, subject, ordering_key, headers, payload, created_at, xmin, tableoid FROM {schema}.message_%s', n
  ), ' UNION ALL ') INTO log
  FROM generate_series(0, 7) AS n;
  EXECUTE 'CREATE VIEW {schema}.log AS ' || log;
END $segments$;
COMMENT ON VIEW {schema}.log IS 'The message log: all segments.';

-- The number of the turn: turn modulo 8 is the segment that new messages go into. A sequence,
-- because every session must read its current value, even with an old snapshot.
CREATE SEQUENCE {schema}.turn AS bigint MINVALUE 0 START 0 CACHE 1;
SELECT setval('{schema}.turn', 0);

-- The state of each segment. The row of a turn is written in the transaction that begins it: a
-- snapshot in which it is visible shows all messages of the turns before.
CREATE TABLE {schema}.segment (
  number     smallint NOT NULL,
  turn       bigint NOT NULL,
  is_live    boolean NOT NULL,
  is_empty   boolean NOT NULL,
  began_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  drained_at timestamptz,
  tried_at   timestamptz,
  tried_xact xid8,
  looked_lane smallint,
  looked_id  bigint,
  CONSTRAINT segment_pkey PRIMARY KEY (number),
  CONSTRAINT segment_number CHECK (number BETWEEN 0 AND 7)
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.segment IS 'The segments of the log. Private: written by the functions that turn the ring.';
COMMENT ON COLUMN {schema}.segment.turn IS 'The turn in which messages went into it; below 0 = none yet.';
COMMENT ON COLUMN {schema}.segment.is_live IS 'A message in it may be due. While one segment alone is live, relays read nothing else.';
COMMENT ON COLUMN {schema}.segment.drained_at IS 'Since when no message in it is due.';
COMMENT ON COLUMN {schema}.segment.tried_at IS 'When a relay last asked for the lock that ends its turn.';
COMMENT ON COLUMN {schema}.segment.tried_xact IS 'The transaction that did: an older one that holds the table at the next try is a long one.';
COMMENT ON COLUMN {schema}.segment.looked_lane IS 'With looked_id: up to where find_unsent() has looked for messages of a restored database; 32767 = everywhere.';
INSERT INTO {schema}.segment (number, turn, is_live, is_empty)
SELECT n, CASE WHEN n = 0 THEN 0 ELSE n - 8 END, n = 0, n > 0
FROM generate_series(0, 7) AS n;

-- A relay locks a lane's row, and no statement updates it. Row locks are kept in place.
CREATE TABLE {schema}.lane (
  lane smallint PRIMARY KEY
);
COMMENT ON TABLE {schema}.lane IS 'The lanes. A relay that works on a lane has its row locked.';

INSERT INTO {schema}.lane (lane)
SELECT n
FROM generate_series(0, {lanes} - 1) AS n;

-- Where each lane stands: the row with the highest number counts. Settling inserts the next row and
-- deletes the one before. An updated row would grow a version with every batch under a long
-- transaction, and every claim would walk them all; the end of an index is found at once, however
-- many dead rows come before it.
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
  acknowledged      jsonb NOT NULL DEFAULT '{}',
  CONSTRAINT cursor_pkey PRIMARY KEY (lane, number),
  CONSTRAINT cursor_ids CHECK (floor >= 0 AND high >= 0),
  CONSTRAINT cursor_drain CHECK ((target IS NULL) = (after IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE {schema}.cursor IS 'The cursor of each lane: every message with id <= high that is visible in snap is settled.';
COMMENT ON COLUMN {schema}.cursor.floor IS 'Messages up to here are settled, with any xact.';
COMMENT ON COLUMN {schema}.cursor.target IS 'Set while a large set of late messages is drained in parts: the messages visible here are due; after is the last id sent.';
COMMENT ON COLUMN {schema}.cursor.reset_until IS 'Set while messages of another cluster (a restored dump) are drained: up to this id, xact means nothing here.';
COMMENT ON COLUMN {schema}.cursor.acknowledged IS 'For each stream the highest sequence that acknowledged a message of the lane, and that message''s Nats-Msg-Id: {"ORDERS": [4711, "..."]}.';

INSERT INTO {schema}.cursor (lane, number, system_identifier)
SELECT l.lane, 1, c.system_identifier
FROM {schema}.lane AS l, pg_control_system() AS c;

-- The row of each lane that counts.
CREATE VIEW {schema}.lane_cursor AS
SELECT
  l.lane, c.number, c.floor, c.high, c.snap, c.target, c.after, c.reset_until, c.system_identifier, c.settled_at,
  c.acknowledged
FROM {schema}.lane AS l
CROSS JOIN LATERAL (
  SELECT *
  FROM {schema}.cursor AS newest
  WHERE newest.lane = l.lane
  ORDER BY newest.number DESC
  LIMIT 1
) AS c;

-- The number of lanes, also when rows of the table are missing.
CREATE FUNCTION {schema}.lane_count() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN {lanes};
COMMENT ON FUNCTION {schema}.lane_count IS 'How many lanes the outbox was installed with; table lane has a row for each.';

-- The lane of a message: all messages of one ordering key share a lane.
CREATE FUNCTION {schema}.lane_of(ordering_key text) RETURNS smallint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN mod(hashtextextended(ordering_key, 0) & 1048575, {lanes})::smallint;

-- Several outboxes can share a stream: each Nats-Msg-Id begins with its outbox's identity. A dump
-- keeps it, so a restored outbox sends the same ids again.
CREATE TABLE {schema}.outbox (
  only_row boolean NOT NULL DEFAULT true,
  identity text NOT NULL DEFAULT left(replace(gen_random_uuid()::text, '-', ''), 12),
  CONSTRAINT outbox_pkey PRIMARY KEY (only_row),
  CONSTRAINT outbox_only_row CHECK (only_row),
  CONSTRAINT outbox_identity CHECK (identity COLLATE "C" ~ '^[0-9a-f]{12}$')
);
COMMENT ON TABLE {schema}.outbox IS 'One row: the identity of this outbox, the first part of each Nats-Msg-Id. Copy it with the messages.';
INSERT INTO {schema}.outbox DEFAULT VALUES;

-- 1 while a relay sleeps, else 0. A sequence, because it is updated in place: a row would grow
-- versions under a long transaction, and every producer would walk them.
CREATE SEQUENCE {schema}.relay_asleep AS smallint MINVALUE 0 MAXVALUE 1 START 0 CACHE 1;

-- Wakes a relay that sleeps, after an enqueue. The first producer clears the mark and pays for the
-- NOTIFY; the others find the mark cleared. This is a hint that may be lost: relays poll.
--
-- A hint must not fail a producer. PREPARE TRANSACTION refuses a transaction that has sent a
-- NOTIFY, and this function cannot know which one will be prepared: where transactions can be
-- prepared it notifies no relay, and relays look often instead. A NOTIFY into a full queue fails
-- the COMMIT, and a listener in any database of the cluster that sleeps in a transaction fills the
-- queue: if more than half of it is full, no relay is notified. Asking for the usage also frees the
-- entries that the queue keeps after its slowest listener has gone.
CREATE FUNCTION {schema}.wake_relay() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM setval('{schema}.relay_asleep', 0);
  IF current_setting('max_prepared_transactions') = '0' AND pg_notification_queue_usage() < 0.5 THEN
    PERFORM pg_notify('{name}', '');
  END IF;
END $$;

-- Compares a key that was found with this message: in this turn and the one before, and while it is
-- delayed, one key names one message. Older ones may be kept whose key is free again. A row of
-- lane -2 keeps the key that a message had before an operator edited it, see 0027_edit.sql.
CREATE FUNCTION {schema}.check_enqueued(wanted_key text, wanted_subject text, wanted_payload bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  this_turn bigint := pg_sequence_last_value('{schema}.turn');
  stored record;
BEGIN
  EXECUTE format($found$
    SELECT m.subject, m.payload FROM {schema}.message_%s AS m WHERE m.key = $1 AND m.lane <> -1
    UNION ALL
    SELECT m.subject, m.payload FROM {schema}.message_%s AS m WHERE m.key = $1 AND m.lane <> -1
    UNION ALL
    SELECT d.subject, d.payload FROM {schema}.delayed AS d WHERE d.key = $1
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
END $$;

-- The function has a branch for each segment, of one text: a statement with a table's name in it is
-- planned once for each session. A key is unique within this turn and the one before. The INSERT
-- reads the turn again: the table is locked by then, so the turn cannot end before this transaction
-- does; see end_turn(). A delayed message holds its key until it is sent.
--
-- Draws the id before the INSERT, which then returns nothing, and reads the relay's mark by a
-- function instead of a query: both make it cheaper. pg_sequence_last_value() is NULL as long as no
-- relay has ever set the mark.
DO $make$
DECLARE
  branches text;
BEGIN
  SELECT string_agg(format($branch$
      WHEN %1$s THEN
        INSERT INTO {schema}.message_%1$s (id, lane, key, subject, ordering_key, headers, payload)
        SELECT new_id, {schema}.lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
               enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload
        WHERE pg_sequence_last_value('{schema}.turn') = this_turn
          AND NOT EXISTS (SELECT FROM {schema}.message_%2$s AS b WHERE b.key = enqueue.key)
          AND NOT EXISTS (SELECT FROM {schema}.delayed AS d WHERE d.key = enqueue.key)
        ON CONFLICT ON CONSTRAINT message_%1$s_key_unique DO NOTHING;$branch$, n, (n + 7) % 8), '' ORDER BY n) INTO branches
  FROM generate_series(0, 7) AS n;
  EXECUTE replace($function$
CREATE FUNCTION {schema}.enqueue(
  key text, subject text, payload bytea, headers jsonb DEFAULT '{}', ordering_key text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  new_id bigint;
  this_turn bigint;
BEGIN
  IF {schema}.is_plain(enqueue.key, enqueue.subject, enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload) IS NOT TRUE THEN
    PERFORM {schema}.check_message(enqueue.key, enqueue.subject, enqueue.ordering_key, enqueue.headers, enqueue.payload);
  END IF;
  -- A transaction that a crash can undo must not be seen by the relay: make its commit durable.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  FOR attempt IN 1 .. 5 LOOP
    new_id := nextval('{schema}.message_id_seq');
    this_turn := pg_sequence_last_value('{schema}.turn');
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      PERFORM {schema}.check_turn(this_turn);
    END IF;
    CASE this_turn % 8-- branches
      ELSE
        RAISE EXCEPTION 'the sequence "turn" has no value' USING ERRCODE = '55000',
          HINT = 'Run `oncebox migrate`, which gives it one; a relay does so within a minute.';
    END CASE;
    IF FOUND THEN
      -- Not before the INSERT: without a transaction id this transaction is one that a relay, which
      -- sets its mark and then looks who is still at work, would not see.
      IF pg_sequence_last_value('{schema}.relay_asleep') = 1 THEN
        PERFORM {schema}.wake_relay();
      END IF;
      RETURN new_id;
    END IF;
    -- Nothing was written: the turn has ended, the key was found, or it was found and then
    -- cancelled between the two statements.
    IF pg_sequence_last_value('{schema}.turn') = this_turn
       AND {schema}.check_enqueued(enqueue.key, enqueue.subject, enqueue.payload) THEN
      RETURN NULL;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'key "%" was deleted while it was enqueued', enqueue.key
    USING ERRCODE = '40001', HINT = 'Nothing was enqueued. Run the transaction again.';
END $$$function$, '-- branches', branches);
END $make$;
COMMENT ON FUNCTION {schema}.enqueue IS 'Enqueue a message in this transaction. Returns its id, NULL when this very message is already enqueued; error OB001 when the key names another message.';

-- Writes rows as enqueue() does, for those that write several, or others: returns the ids of those
-- that were written, and not of those whose key is taken. `is_moved` says that the key is the
-- row's own already, as a delayed message.
DO $make$
DECLARE
  branches text;
BEGIN
  SELECT string_agg(format($branch$
      WHEN %1$s THEN
        WITH written AS (
          INSERT INTO {schema}.message_%1$s AS m (id, lane, key, subject, ordering_key, headers, payload)
          SELECT g.id, g.lane, g.key, g.subject, g.ordering_key, g.headers, g.payload
          FROM unnest(ids, lanes, keys, subjects, ordering_keys, append.headers, payloads)
            AS g (id, lane, key, subject, ordering_key, headers, payload)
          WHERE pg_sequence_last_value('{schema}.turn') = this_turn
            AND (is_moved OR NOT EXISTS (SELECT FROM {schema}.message_%2$s AS b WHERE b.key = g.key)
                         AND NOT EXISTS (SELECT FROM {schema}.delayed AS d WHERE d.key = g.key))
          ORDER BY g.id
          ON CONFLICT ON CONSTRAINT message_%1$s_key_unique DO NOTHING
          RETURNING m.id
        )
        SELECT array_agg(w.id) INTO written_ids FROM written AS w;$branch$, n, (n + 7) % 8), '' ORDER BY n) INTO branches
  FROM generate_series(0, 7) AS n;
  EXECUTE replace($function$
CREATE FUNCTION {schema}.append(
  ids bigint[], lanes smallint[], keys text[], subjects text[], ordering_keys text[], headers jsonb[], payloads bytea[],
  is_moved boolean
) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  this_turn bigint;
  written_ids bigint[];
BEGIN
  FOR attempt IN 1 .. 5 LOOP
    this_turn := pg_sequence_last_value('{schema}.turn');
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      PERFORM {schema}.check_turn(this_turn);
    END IF;
    CASE this_turn % 8-- branches
      ELSE
        RAISE EXCEPTION 'the sequence "turn" has no value' USING ERRCODE = '55000',
          HINT = 'Run `oncebox migrate`, which gives it one; a relay does so within a minute.';
    END CASE;
    IF pg_sequence_last_value('{schema}.turn') = this_turn THEN
      RETURN coalesce(written_ids, '{}');
    END IF;
  END LOOP;
  RAISE EXCEPTION 'the message log turned five times in a moment' USING ERRCODE = '40001';
END $$$function$, '-- branches', branches);
END $make$;

-- PostgreSQL writes the JSON, in UTF-8 with any encoding of the database.
CREATE FUNCTION {schema}.enqueue_json(
  key text, subject text, payload jsonb, headers jsonb DEFAULT '{}', ordering_key text DEFAULT NULL
) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN {schema}.enqueue(key, subject, convert_to(payload::text, 'UTF8'), headers, ordering_key);
COMMENT ON FUNCTION {schema}.enqueue_json IS 'As enqueue(), with a payload of JSON, in UTF-8 as PostgreSQL writes it.';

-- The bulk form: one row out for each row in, in the same order; ids are drawn in that order. It
-- fails, for the caller to run its transaction again, when a key that it found is gone a moment
-- later: cancelled while it was delayed, or deleted by retention. enqueue() inserts it instead.
CREATE FUNCTION {schema}.enqueue_all(
  keys text[], subjects text[], payloads bytea[], headers jsonb[] DEFAULT NULL, ordering_keys text[] DEFAULT NULL
) RETURNS TABLE (key text, id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
  PERFORM {schema}.check_message(g.key, g.subject, g.ordering_key, g.headers, g.payload)
  FROM unnest(keys, subjects, payloads, enqueue_all.headers, ordering_keys) AS g (key, subject, payload, headers, ordering_key)
  WHERE {schema}.is_plain(g.key, g.subject, g.ordering_key, coalesce(g.headers, '{}'), g.payload) IS NOT TRUE;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  ids := ARRAY(SELECT nextval('{schema}.message_id_seq') FROM generate_series(1, total));
  SELECT {schema}.append(
    ids, array_agg({schema}.lane_of(coalesce(g.ordering_key, g.key)) ORDER BY g.n), keys, subjects,
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
  WHERE CASE WHEN w.id IS NULL THEN NOT {schema}.check_enqueued(g.key, g.subject, g.payload) END;
  IF deleted_key IS NOT NULL THEN
    RAISE EXCEPTION 'key "%" was deleted while it was enqueued', deleted_key
      USING ERRCODE = '40001', HINT = 'Nothing was enqueued. Run the transaction again.';
  END IF;
  IF total > 0 AND (SELECT s.last_value FROM {schema}.relay_asleep AS s) = 1 THEN
    PERFORM {schema}.wake_relay();
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.enqueue_all IS 'Enqueue many messages in this transaction, at most 10,000; the arrays have one length. Returns a row for each message, in this order, with an id of NULL for one that is already enqueued. As a whole it fails where enqueue() would fail for one of them.';
