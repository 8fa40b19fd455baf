-- Delayed messages wait here until they are due; then a relay moves them into the log.
--
-- The key of a delayed message is unique together with those of the log. For that it has a
-- placeholder in the log: a row of lane -1, which no relay claims, with key and subject, and
-- without headers and payload. So the one unique index decides while others enqueue, at any
-- isolation level, and `enqueue` costs no more. The placeholder and the row here have the same id,
-- and are written together. The placeholder counts for its turn and the next: transactions that
-- enqueue later see the row here, since the turn does not end before its transaction. So
-- placeholders go with their segments.
CREATE TABLE {schema}.delayed (
  id           bigint NOT NULL,
  key          text COLLATE "C" NOT NULL,
  subject      text NOT NULL,
  ordering_key text COLLATE "C",
  headers      jsonb NOT NULL,
  payload      bytea NOT NULL,
  not_before   timestamptz NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT delayed_pkey PRIMARY KEY (id),
  CONSTRAINT delayed_key_unique UNIQUE (key),
  CONSTRAINT delayed_not_before CHECK (isfinite(not_before))
);
COMMENT ON TABLE {schema}.delayed IS 'Messages that wait for their time. Private: written by enqueue_at(), moved into the log by move_delayed().';
COMMENT ON COLUMN {schema}.delayed.id IS 'That of its placeholder, in lane -1 of the log; in the log the message gets another.';

CREATE INDEX delayed_due ON {schema}.delayed (not_before, id);
CREATE INDEX delayed_ordering_key ON {schema}.delayed (ordering_key, not_before, id)
  WHERE ordering_key IS NOT NULL;

-- One relay moves at a time: another would lock the next messages, and find that most of them have
-- to wait for those that the first one moves.
CREATE TABLE {schema}.delayed_mover (
  only_row boolean NOT NULL DEFAULT true,
  CONSTRAINT delayed_mover_pkey PRIMARY KEY (only_row),
  CONSTRAINT delayed_mover_only_row CHECK (only_row)
);
COMMENT ON TABLE {schema}.delayed_mover IS 'One row, locked by the relay that moves delayed messages into the log.';
INSERT INTO {schema}.delayed_mover DEFAULT VALUES;

-- A message whose time has come goes straight into the log.
CREATE FUNCTION {schema}.enqueue_at(
  key text, subject text, payload bytea, not_before timestamptz, headers jsonb DEFAULT '{}',
  ordering_key text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  new_id bigint;
BEGIN
  IF enqueue_at.not_before IS NULL THEN
    RAISE EXCEPTION 'not_before is null' USING ERRCODE = 'OB008',
      HINT = 'Give the time before which the message must not be sent, or call enqueue().';
  END IF;
  IF enqueue_at.not_before <= clock_timestamp() AND isfinite(enqueue_at.not_before) THEN
    RETURN {schema}.enqueue(enqueue_at.key, enqueue_at.subject, enqueue_at.payload, enqueue_at.headers,
                            enqueue_at.ordering_key);
  END IF;
  -- A wrong unit, such as milliseconds for seconds, is found here and not in the year 50000.
  IF NOT isfinite(enqueue_at.not_before) OR enqueue_at.not_before > clock_timestamp() + interval '10 years' THEN
    RAISE EXCEPTION 'not_before is %; the limit is ten years ahead', enqueue_at.not_before USING ERRCODE = 'OB008';
  END IF;
  PERFORM {schema}.check_message(enqueue_at.key, enqueue_at.subject, enqueue_at.ordering_key, enqueue_at.headers,
                                 enqueue_at.payload);
  -- As in enqueue(): a relay must not see a commit that a crash can undo.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  FOR attempt IN 1 .. 3 LOOP
    new_id := ({schema}.append(
      ARRAY[nextval('{schema}.message_id_seq')], '{-1}', ARRAY[enqueue_at.key], ARRAY[enqueue_at.subject], '{NULL}',
      '{"{}"}', '{""}', false
    ))[1];
    IF new_id IS NOT NULL THEN
      INSERT INTO {schema}.delayed (id, key, subject, ordering_key, headers, payload, not_before)
      VALUES (new_id, enqueue_at.key, enqueue_at.subject, enqueue_at.ordering_key,
              coalesce(enqueue_at.headers, '{}'), enqueue_at.payload, enqueue_at.not_before);
      RETURN new_id;
    END IF;
    IF {schema}.check_enqueued(enqueue_at.key, enqueue_at.subject, enqueue_at.payload) THEN
      RETURN NULL;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'key "%" was deleted three times while it was enqueued', enqueue_at.key USING ERRCODE = '40001';
END $$;
COMMENT ON FUNCTION {schema}.enqueue_at IS 'Enqueue a message in this transaction that must not be sent before a time of this database''s clock. Returns an id, NULL when this very message is enqueued already, for any time; error OB001 when the key names another message.';

-- As enqueue_json(). A JSON text that is given as bytea is read as one, with its own backslashes.
CREATE FUNCTION {schema}.enqueue_json_at(
  key text, subject text, payload jsonb, not_before timestamptz, headers jsonb DEFAULT '{}', ordering_key text DEFAULT NULL
) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN {schema}.enqueue_at(key, subject, convert_to(payload::text, 'UTF8'), not_before, headers, ordering_key);
COMMENT ON FUNCTION {schema}.enqueue_json_at IS 'enqueue_at() with a payload in JSON.';

-- Deletes the placeholders that count, those in the segments of this turn and of the one before:
-- their keys are free again. Call it when the rows of `delayed` are deleted: a turn that ends
-- meanwhile has none of them in its new segment.
CREATE FUNCTION {schema}.delete_placeholders(ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  this_turn bigint := pg_sequence_last_value('{schema}.turn');
BEGIN
  EXECUTE format('DELETE FROM {schema}.message_%s AS m WHERE m.lane = -1 AND m.id = ANY ($1)', this_turn % 8) USING ids;
  EXECUTE format('DELETE FROM {schema}.message_%s AS m WHERE m.lane = -1 AND m.id = ANY ($1)', (this_turn + 7) % 8) USING ids;
END $$;

-- Deletes the message and its placeholder.
CREATE FUNCTION {schema}.cancel_delayed(key text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cancelled bigint;
BEGIN
  IF cancel_delayed.key IS NULL THEN
    RAISE EXCEPTION 'key is null' USING ERRCODE = 'OB002', HINT = 'Name the delayed message to give up.';
  END IF;
  -- Waits for a relay that is moving it, which takes milliseconds; a relay never waits here.
  DELETE FROM {schema}.delayed AS d
  WHERE d.key = cancel_delayed.key
  RETURNING d.id INTO cancelled;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM {schema}.delete_placeholders(ARRAY[cancelled]);
  RETURN true;
END $$;
COMMENT ON FUNCTION {schema}.cancel_delayed IS 'Give a delayed message up in this transaction. True when it will never be sent; false when no message of this key is delayed: it was never enqueued, was cancelled, or has been moved into the log.';

-- The steps of a key lie together: ";" comes after ":".
CREATE FUNCTION {schema}.list_delayed(of_key text, most integer DEFAULT 1000)
RETURNS TABLE (key text, subject text, ordering_key text, not_before timestamptz, created_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT d.key, d.subject, d.ordering_key, d.not_before, d.created_at
  FROM {schema}.delayed AS d
  WHERE d.key = $1 OR d.key > $1 || ':' AND d.key < $1 || ';'
  ORDER BY d.key
  LIMIT least($2, 10000)
$$;
COMMENT ON FUNCTION {schema}.list_delayed IS 'The delayed message with this key, and those of the steps below it; 10000 at most.';

-- Moves delayed messages that are due into the log, in the order of their times, which is the order
-- of each ordering key. Takes those after a place (a time and an id): up to `messages` of them, and
-- up to `bytes` of payload, rounded up to a whole message. Returns how many were moved, NULL when
-- another relay is at it; how many were looked at; the place of the last one of these; and in how
-- many seconds the next one is due, if there is one.
--
-- A message that another transaction is cancelling is skipped, since that transaction may last;
-- those of its ordering key that come after it wait, since the transaction may be rolled back.
CREATE FUNCTION {schema}.move_delayed(
  messages integer, bytes bigint, after_time timestamptz, after_id bigint,
  OUT moved bigint, OUT looked_at bigint, OUT last_time timestamptz, OUT last_id bigint, OUT next_seconds float8
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  due_until timestamptz := clock_timestamp();
  ready record;
BEGIN
  PERFORM FROM {schema}.delayed_mover FOR UPDATE SKIP LOCKED;
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
    FROM {schema}.delayed AS d
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
      FROM {schema}.delayed AS e
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
    array_agg({schema}.lane_of(coalesce(r.ordering_key, r.key)) ORDER BY r.n) AS lanes,
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
    DELETE FROM {schema}.delayed AS d WHERE d.id = ANY (ready.ids);
    PERFORM {schema}.delete_placeholders(ready.ids);
    -- Ids are drawn in that order, and when every placeholder is gone.
    moved := cardinality({schema}.append(
      ARRAY(SELECT nextval('{schema}.message_id_seq') FROM generate_series(1, cardinality(ready.ids))), ready.lanes,
      ready.keys, ready.subjects, ready.ordering_keys, ready.headers, ready.payloads, true
    ));
  END IF;
  SELECT extract(epoch FROM d.not_before) - extract(epoch FROM clock_timestamp()) INTO next_seconds
  FROM {schema}.delayed AS d
  WHERE d.not_before > due_until
  ORDER BY d.not_before
  LIMIT 1;
  IF moved > 0 AND (SELECT s.last_value FROM {schema}.relay_asleep AS s) = 1 THEN
    PERFORM {schema}.wake_relay();
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.move_delayed IS 'For relays: moves delayed messages that are due into the log, some at a time.';
