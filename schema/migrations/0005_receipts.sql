-- Receipts of acknowledged messages, so that the relay notices a loss of a stream and sends the
-- lost messages again. The essay in relay/src/delivery/receipt.rs explains their proof.
CREATE TABLE {schema}.receipt (
  lane              smallint NOT NULL,
  stream            text COLLATE "C" NOT NULL,
  number            bigint NOT NULL,
  sequence          bigint NOT NULL,
  message_id        text COLLATE "C",
  floor             bigint NOT NULL,
  high              bigint NOT NULL,
  snap              pg_snapshot NOT NULL,
  system_identifier bigint NOT NULL,
  at                timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT receipt_pkey PRIMARY KEY (lane, stream, number),
  CONSTRAINT receipt_bounds CHECK (number >= 0 AND sequence >= 0 AND floor >= 0 AND high >= 0)
);
COMMENT ON TABLE {schema}.receipt IS 'Where cursors stood, with the acknowledgements of a stream: all that the cursor calls settled was acknowledged by this stream at or below the sequence, or by another stream, or has a late receipt.';
COMMENT ON COLUMN {schema}.receipt.number IS 'Of the cursor.';
COMMENT ON COLUMN {schema}.receipt.message_id IS 'The Nats-Msg-Id of the message at the sequence; NULL before a lane''s first message in the stream.';
CREATE INDEX receipt_at ON {schema}.receipt (at);

CREATE TABLE {schema}.late_receipt (
  lane     smallint NOT NULL,
  id       bigint NOT NULL,
  replay   integer NOT NULL,
  stream   text COLLATE "C" NOT NULL,
  sequence bigint NOT NULL,
  at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  turn         bigint,
  key          text COLLATE "C",
  subject      text,
  ordering_key text,
  headers      jsonb,
  payload      bytea,
  created_at   timestamptz,
  CONSTRAINT late_receipt_pkey PRIMARY KEY (lane, id, replay),
  CONSTRAINT late_receipt_message CHECK (num_nulls(key, subject, headers, payload, created_at) IN (0, 5))
);
COMMENT ON TABLE {schema}.late_receipt IS 'Messages that had been parked, and replays: cursors passed them before they were stored, so that each has a receipt of its own.';
COMMENT ON COLUMN {schema}.late_receipt.key IS 'With the other columns of a message: set where its segment was emptied before it was stored, in case the stream loses it.';
CREATE INDEX late_receipt_key ON {schema}.late_receipt (key) WHERE key IS NOT NULL;

-- All messages that there are. Those of emptied segments are settled for every cursor, so they have
-- a transaction id that every snapshot sees. Relays read the log, which is cheaper.
CREATE VIEW {schema}.message AS
SELECT m.id, m.lane, m.xact, m.key, m.subject, m.ordering_key, m.headers, m.payload, m.created_at, {schema}.turn_of(m.tableoid) AS turn
FROM {schema}.log AS m
UNION ALL
SELECT p.id, p.lane, '3'::xid8, p.key, p.subject, p.ordering_key, p.headers, p.payload, p.created_at, p.turn
FROM {schema}.parked AS p
WHERE p.turn <> ALL (ARRAY(SELECT s.turn FROM {schema}.segment AS s WHERE NOT s.is_empty))
UNION ALL
SELECT r.id, r.lane, '3'::xid8, r.key, r.subject, r.ordering_key, r.headers, r.payload, r.created_at, r.turn
FROM {schema}.late_receipt AS r
WHERE r.key IS NOT NULL
  AND NOT EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = r.lane AND p.id = r.id)
  AND NOT EXISTS (
    SELECT FROM {schema}.late_receipt AS n
    WHERE n.lane = r.lane AND n.id = r.id AND n.key IS NOT NULL AND n.replay > r.replay
  );
COMMENT ON VIEW {schema}.message IS 'The messages of the log, and those of emptied segments that were set aside.';

CREATE TABLE {schema}.stream (
  name       text COLLATE "C" NOT NULL,
  created    timestamptz NOT NULL,
  subjects   text NOT NULL,
  checked_at timestamptz NOT NULL,
  CONSTRAINT stream_pkey PRIMARY KEY (name),
  CONSTRAINT stream_times CHECK (isfinite(created) AND isfinite(checked_at))
);
COMMENT ON TABLE {schema}.stream IS 'Streams that have acknowledged messages, as they were when a relay last looked, or when they first acknowledged something: one that was created at another time was restored, or made anew.';
COMMENT ON COLUMN {schema}.stream.subjects IS 'A regular expression of the subjects that it takes.';

CREATE TABLE {schema}.loss (
  lane           smallint NOT NULL,
  stream         text COLLATE "C" NOT NULL,
  number         bigint NOT NULL,
  kind           text NOT NULL,
  sequence       bigint NOT NULL,
  lost_sequence  bigint NOT NULL,
  receipt_number bigint,
  floor          bigint NOT NULL,
  high           bigint NOT NULL,
  snap           pg_snapshot NOT NULL,
  found_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  subjects       text,
  resending_at   timestamptz,
  rewound_number bigint,
  until_floor    bigint,
  until_high     bigint,
  until_snap     pg_snapshot,
  until_target   pg_snapshot,
  until_after    bigint,
  ended_at       timestamptz,
  CONSTRAINT loss_pkey PRIMARY KEY (lane, stream, number),
  CONSTRAINT loss_bounds CHECK (floor >= 0 AND high >= 0 AND until_floor >= 0 AND until_high >= 0),
  CONSTRAINT loss_kind CHECK (kind IN ('tail', 'restored', 'recreated', 'unproven')),
  CONSTRAINT loss_state CHECK (ended_at IS NULL OR resending_at IS NOT NULL),
  CONSTRAINT loss_until CHECK ((resending_at IS NULL) = (until_high IS NULL))
);
COMMENT ON TABLE {schema}.loss IS 'Messages that streams lost after they had acknowledged them, lane by lane: from where a lane is to be sent again, and since when it is.';
COMMENT ON COLUMN {schema}.loss.number IS 'Of the cursor that was written when the loss was found.';
COMMENT ON COLUMN {schema}.loss.kind IS 'tail: the end of the stream is missing. restored: the same, of a stream that was restored from a backup. recreated: it is another stream. unproven: no receipt is left that the stream can prove.';
COMMENT ON COLUMN {schema}.loss.sequence IS 'Up to here the stream has all that it acknowledged; it had acknowledged up to lost_sequence.';
COMMENT ON COLUMN {schema}.loss.subjects IS 'The subjects that are sent again: those of the stream when that began. Kept, since every message that was parked with such a subject is read from the log from then on.';
COMMENT ON COLUMN {schema}.loss.until_high IS 'With the other columns of this name: where the lane stood when it was rewound. Messages that this cursor calls settled are sent again, the rest for the first time.';
CREATE INDEX loss_resending ON {schema}.loss (lane) WHERE resending_at IS NOT NULL AND ended_at IS NULL;

-- Records that a stream lost messages that it had acknowledged to a lane, and forgets the receipts
-- that are false now. `proven` is the number of the newest receipt that the stream can prove, NULL
-- when there is none; then the lane begins with its first message. False when another relay was
-- faster: the cursor that the caller had seen, `seen`, was written before. Maintenance, then lanes,
-- always in this order, as repair_ids() does.
CREATE FUNCTION {schema}.note_loss(
  wanted_lane smallint, wanted_stream text, seen bigint, kind text, lost_sequence bigint, proven bigint
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stands record;
  proof record;
BEGIN
  PERFORM FROM {schema}.maintenance FOR UPDATE;
  PERFORM FROM {schema}.lane AS l WHERE l.lane = wanted_lane FOR UPDATE;
  SELECT c.* INTO STRICT stands FROM {schema}.lane_cursor AS c WHERE c.lane = wanted_lane;
  SELECT r.* INTO proof
  FROM {schema}.receipt AS r
  WHERE r.lane = wanted_lane AND r.stream = wanted_stream AND r.number = proven;
  IF (proven IS NOT NULL AND proof IS NULL) OR stands.reset_until IS NOT NULL OR EXISTS (
    SELECT FROM {schema}.loss AS l
    WHERE l.lane = wanted_lane AND l.stream = wanted_stream AND l.number > seen
  ) THEN
    RETURN false;
  END IF;
  INSERT INTO {schema}.cursor (
    lane, number, floor, high, snap, target, after, reset_until, system_identifier, acknowledged
  )
  VALUES (
    wanted_lane, stands.number + 1, stands.floor, stands.high, stands.snap, stands.target, stands.after, NULL,
    stands.system_identifier,
    CASE WHEN proof.message_id IS NULL THEN stands.acknowledged - wanted_stream
      ELSE stands.acknowledged || jsonb_build_object(wanted_stream, jsonb_build_array(proof.sequence, proof.message_id))
    END
  );
  DELETE FROM {schema}.cursor AS c WHERE c.lane = wanted_lane AND c.number = stands.number;
  DELETE FROM {schema}.receipt AS r
  WHERE r.lane = wanted_lane AND r.stream = wanted_stream AND r.number > coalesce(proven, -1);
  INSERT INTO {schema}.loss (lane, stream, number, kind, sequence, lost_sequence, receipt_number, floor, high, snap)
  VALUES (
    wanted_lane, wanted_stream, stands.number + 1, note_loss.kind, coalesce(proof.sequence, 0),
    note_loss.lost_sequence, proven, coalesce(proof.floor, stands.floor), coalesce(proof.high, stands.floor),
    coalesce(proof.snap, pg_current_snapshot())
  );
  RETURN true;
END $$;

-- The two places between which a lane is sent again after a loss: the settled messages in between
-- are sent. With `since`, from the newest milestone that is not later, reached at `reached_at`;
-- that is NULL when the lane goes back to the proven receipt. No row when nothing is to be sent
-- again, or when the lane holds rows of another cluster. `goes_back` is false when the lane is
-- being sent again already, from further back.
CREATE FUNCTION {schema}.resend_place(
  wanted_lane smallint, wanted_stream text, since timestamptz,
  OUT sequence bigint, OUT found_at timestamptz, OUT at_number bigint, OUT reached_at timestamptz, OUT goes_back boolean,
  OUT floor bigint, OUT high bigint, OUT snap pg_snapshot,
  OUT until_floor bigint, OUT until_high bigint, OUT until_snap pg_snapshot, OUT until_target pg_snapshot,
  OUT until_after bigint
) RETURNS SETOF record
LANGUAGE plpgsql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stands record;
  lost record;
  later record;
BEGIN
  SELECT c.* INTO STRICT stands FROM {schema}.lane_cursor AS c WHERE c.lane = wanted_lane;
  SELECT l.* INTO lost
  FROM {schema}.loss AS l
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
  FROM {schema}.milestone AS m
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
  FROM {schema}.loss AS l
  WHERE l.lane = wanted_lane AND l.resending_at IS NOT NULL AND l.ended_at IS NULL AND l.until_high > stands.high
  ORDER BY l.until_high DESC
  LIMIT 1;
  IF NOT FOUND THEN
    SELECT stands.floor, stands.high, stands.snap, stands.target, stands.after
    INTO until_floor, until_high, until_snap, until_target, until_after;
  END IF;
  RETURN NEXT;
END $$;

-- Has the lost messages of a lane sent again: writes the lane's cursor as it stood at
-- resend_place(), and parks again the messages that had been parked. The receipts of other streams
-- stay true of the older cursor. Segments that hold such messages are live again, so that relays
-- read them and retention keeps them. False when there is no such place.
CREATE FUNCTION {schema}.resend_lost(wanted_lane smallint, wanted_stream text, since timestamptz DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stands record;
  place record;
BEGIN
  PERFORM FROM {schema}.maintenance FOR UPDATE;
  PERFORM FROM {schema}.lane AS l WHERE l.lane = wanted_lane FOR UPDATE;
  SELECT c.* INTO STRICT stands FROM {schema}.lane_cursor AS c WHERE c.lane = wanted_lane;
  SELECT p.* INTO place FROM {schema}.resend_place(wanted_lane, wanted_stream, since) AS p;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE {schema}.loss AS l
  SET
    subjects = (SELECT s.subjects FROM {schema}.stream AS s WHERE s.name = wanted_stream),
    resending_at = clock_timestamp(), rewound_number = stands.number + 1, until_floor = place.until_floor,
    until_high = place.until_high, until_snap = place.until_snap, until_target = place.until_target,
    until_after = place.until_after
  WHERE l.lane = wanted_lane AND l.stream = wanted_stream AND l.resending_at IS NULL;
  IF place.goes_back THEN
    INSERT INTO {schema}.cursor (lane, number, floor, high, snap, system_identifier, acknowledged)
    VALUES (wanted_lane, stands.number + 1, place.floor, place.high, place.snap, stands.system_identifier,
            stands.acknowledged);
    DELETE FROM {schema}.cursor AS c WHERE c.lane = wanted_lane AND c.number = stands.number;
    DELETE FROM {schema}.milestone AS m WHERE m.lane = wanted_lane AND m.number > place.at_number;
    UPDATE {schema}.receipt AS r
    SET floor = place.floor, high = place.high, snap = place.snap
    WHERE r.lane = wanted_lane AND r.number > place.at_number;
    UPDATE {schema}.loss AS l
    SET floor = place.floor, high = place.high, snap = place.snap
    WHERE l.lane = wanted_lane AND l.resending_at IS NULL AND coalesce(l.receipt_number, -1) > place.at_number;
  END IF;
  UPDATE {schema}.segment AS s
  SET is_live = true, drained_at = NULL
  WHERE NOT s.is_empty AND NOT s.is_live AND {schema}.segment_is_due(s.number);
  -- Messages after the place that the lane goes back to are read from the log again, in their
  -- order, also those that are parked: else these would overtake lost messages of their ordering
  -- key. A lost message before that place is parked. So is a message whose segment is emptied:
  -- every lost message of its ordering key that is still in the log comes after it.
  DELETE FROM {schema}.parked AS p
  USING {schema}.log AS m, {schema}.stream AS s
  WHERE p.lane = wanted_lane
    AND p.dead_at IS NULL
    AND p.replay = 0
    AND m.lane = p.lane
    AND m.id = p.id
    AND s.name = wanted_stream
    AND m.subject COLLATE "C" ~ s.subjects
    AND NOT (m.id <= place.floor OR m.id <= place.high AND pg_visible_in_snapshot(m.xact, place.snap));
  WITH taken AS (
    DELETE FROM {schema}.late_receipt AS r
    WHERE r.lane = wanted_lane AND r.stream = wanted_stream AND r.sequence > place.sequence
      AND r.at BETWEEN coalesce(place.reached_at, '-infinity') AND place.found_at
    RETURNING r.*
  ),
  gone AS (
    SELECT m.*
    FROM (SELECT t.id, max(t.replay) AS replay FROM taken AS t GROUP BY t.id) AS t
    CROSS JOIN LATERAL (
      SELECT n.id, {schema}.turn_of(n.tableoid) AS turn, n.ordering_key, t.replay, n.key, n.subject, n.headers, n.payload,
             n.created_at
      FROM {schema}.log AS n
      WHERE n.lane = wanted_lane AND n.id = t.id
        AND (n.id <= place.floor OR n.id <= place.high AND pg_visible_in_snapshot(n.xact, place.snap))
      UNION ALL
      SELECT n.id, n.turn, n.ordering_key, t.replay, n.key, n.subject, n.headers, n.payload, n.created_at
      FROM taken AS n
      WHERE n.id = t.id AND n.replay = t.replay AND n.key IS NOT NULL
    ) AS m
  )
  INSERT INTO {schema}.parked (
    lane, id, turn, ordering_key, attempts, next_attempt_at, error, cause, replay, key, subject, headers, payload, created_at
  )
  SELECT
    wanted_lane, m.id, m.turn, m.ordering_key, 0,
    CASE WHEN m.ordering_key IS NULL OR row_number() OVER (PARTITION BY m.ordering_key ORDER BY m.id) = 1
      THEN clock_timestamp() END,
    'the stream has lost it after it had acknowledged it', 'lost', m.replay, m.key, m.subject, m.headers, m.payload, m.created_at
  FROM gone AS m
  WHERE NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = wanted_lane AND d.id = m.id)
  ON CONFLICT ON CONSTRAINT parked_pkey DO NOTHING;
  PERFORM {schema}.wake_relay();
  RETURN true;
END $$;
COMMENT ON FUNCTION {schema}.resend_lost IS 'Has the relays send messages again that a stream lost of a lane; for `oncebox outbox resend`.';
