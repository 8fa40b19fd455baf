-- Messages that are set aside, the functions of operators, retention, and the reports of relays.

-- Dead messages are indexed apart from those that are still to be sent. A relay that lets ordering
-- keys go on must not walk the dead messages of a key for each message of it; one that holds them
-- back must find the next dead one at once. Messages that wait for the same cause are found in the
-- order of their due times.
--
-- Each row carries its message. So the segment that it was enqueued into can be emptied although
-- the message is set aside, and a dump has it whole, whenever its snapshot was taken: TRUNCATE
-- obeys no snapshot.
CREATE TABLE {schema}.parked (
  lane            smallint NOT NULL,
  id              bigint NOT NULL,
  turn            bigint NOT NULL,
  ordering_key    text COLLATE "C",
  attempts        integer NOT NULL,
  next_attempt_at timestamptz,
  dead_at         timestamptz,
  error           text NOT NULL,
  parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  replay          integer NOT NULL DEFAULT 0,
  cause           text,
  waits_for       text COLLATE "C",
  key             text COLLATE "C" NOT NULL,
  subject         text NOT NULL,
  headers         jsonb NOT NULL,
  payload         bytea NOT NULL,
  created_at      timestamptz NOT NULL,
  CONSTRAINT parked_pkey PRIMARY KEY (lane, id),
  CONSTRAINT parked_attempts CHECK (attempts >= 0),
  CONSTRAINT parked_error CHECK (octet_length(error) <= 1000),
  CONSTRAINT parked_replay CHECK (replay >= 0),
  CONSTRAINT parked_state CHECK (dead_at IS NULL OR next_attempt_at IS NULL)
);
COMMENT ON TABLE {schema}.parked IS 'Messages set aside: next_attempt_at set = looked at again then, and sent if it is the first of its ordering key; dead_at set = dead; neither = waits for others of its ordering key.';
COMMENT ON COLUMN {schema}.parked.turn IS 'That of the segment of the log that holds the message too, until it is emptied.';
COMMENT ON COLUMN {schema}.parked.replay IS '0 for a message that was never stored; N for its replay, sent with Nats-Msg-Id outbox/digest/rN/key.';
COMMENT ON COLUMN {schema}.parked.cause IS 'The cause of the error, in a word that does not change, such as no-stream; behind = waits for others of its ordering key, replay = to be replayed.';
COMMENT ON COLUMN {schema}.parked.waits_for IS 'The obstacle that refuses the message with others: stream NAME, subject NAME, or pause KIND VALUE. A few of them have the next due times; all others have one that is hours away, and are tried as soon as one of those is stored.';
CREATE INDEX parked_due ON {schema}.parked (lane, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX parked_ordering_key ON {schema}.parked (lane, ordering_key, id)
  WHERE ordering_key IS NOT NULL AND dead_at IS NULL;
CREATE INDEX parked_dead_ordering_key ON {schema}.parked (lane, ordering_key, id)
  WHERE ordering_key IS NOT NULL AND dead_at IS NOT NULL;
CREATE INDEX parked_dead ON {schema}.parked (lane, id) WHERE dead_at IS NOT NULL;
CREATE INDEX parked_key ON {schema}.parked (key);
CREATE INDEX parked_waits_for ON {schema}.parked (lane, waits_for, next_attempt_at) WHERE waits_for IS NOT NULL;

CREATE TABLE {schema}.discarded (
  lane smallint NOT NULL,
  id   bigint NOT NULL,
  turn bigint NOT NULL DEFAULT pg_sequence_last_value('{schema}.turn'),
  CONSTRAINT discarded_pkey PRIMARY KEY (lane, id)
);
COMMENT ON TABLE {schema}.discarded IS 'Messages that an operator gave up: never published, not by a replay either.';
COMMENT ON COLUMN {schema}.discarded.turn IS 'The turn in which that was. When all segments up to it are emptied, the message is gone, and so is the row.';
CREATE INDEX discarded_turn ON {schema}.discarded (turn);

CREATE TABLE {schema}.replay (
  lane         smallint NOT NULL,
  id           bigint NOT NULL,
  number       integer NOT NULL,
  request      text NOT NULL,
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  cancelled    integer,
  turn         bigint NOT NULL DEFAULT pg_sequence_last_value('{schema}.turn'),
  CONSTRAINT replay_pkey PRIMARY KEY (lane, id),
  CONSTRAINT replay_number CHECK (number >= 1),
  CONSTRAINT replay_request_size CHECK (octet_length(request) BETWEEN 1 AND 255)
);
COMMENT ON TABLE {schema}.replay IS 'How often a message was replayed, and by which request last, so that a request that was cut off can go on.';
COMMENT ON COLUMN {schema}.replay.turn IS 'The turn of the last request; the row goes as that of a discarded message does.';
CREATE INDEX replay_turn ON {schema}.replay (turn);
COMMENT ON COLUMN {schema}.replay.cancelled IS 'The number of the last replay that an operator gave up before it was sent; NULL = none.';

-- Each claim of a relay reads the rows whose time has not come.
CREATE TABLE {schema}.pause (
  kind          text COLLATE "C" NOT NULL,
  value         text COLLATE "C" NOT NULL,
  rate          double precision,
  subjects      text[],
  ordering_key  text COLLATE "C",
  reason        text,
  paused_by     text,
  database_user text NOT NULL DEFAULT session_user,
  paused_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  ends_at       timestamptz NOT NULL DEFAULT 'infinity',
  CONSTRAINT pause_pkey PRIMARY KEY (kind, value),
  CONSTRAINT pause_kind CHECK (kind IN ('all', 'subject', 'stream', 'ordering key')),
  CONSTRAINT pause_value_size CHECK (octet_length(value) BETWEEN 1 AND 1000),
  CONSTRAINT pause_rate CHECK (rate > 0),
  CONSTRAINT pause_subjects CHECK (array_position(subjects, NULL) IS NULL),
  CONSTRAINT pause_matches CHECK ((subjects IS NULL) = (kind = 'ordering key') AND (ordering_key IS NULL) = (subjects IS NOT NULL)),
  CONSTRAINT pause_reason_size CHECK (octet_length(reason) BETWEEN 1 AND 1000),
  CONSTRAINT pause_by_size CHECK (octet_length(paused_by) BETWEEN 1 AND 255)
);
COMMENT ON TABLE {schema}.pause IS 'The pauses and throttles of operators: relays send none of these messages, or a number of them a second, until ends_at.';
COMMENT ON COLUMN {schema}.pause.rate IS 'Messages a second; NULL = none.';
COMMENT ON COLUMN {schema}.pause.subjects IS 'Patterns; of a stream those that it had when it was paused.';

-- Relays count the tokens of each throttle here, under the lock of its row: see take_tokens.sql.
-- Not in the table pause, whose rows would grow a version with each pass, and each claim reads
-- them.
CREATE TABLE {schema}.throttle (
  kind       text COLLATE "C" NOT NULL,
  value      text COLLATE "C" NOT NULL,
  tokens     double precision NOT NULL DEFAULT 0,
  counted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT throttle_pkey PRIMARY KEY (kind, value)
);
COMMENT ON TABLE {schema}.throttle IS 'How many messages each throttle lets pass at once, and when that was counted.';

-- A dead letter of an inbox is recorded with its scope, and need not have a key. Of a saga, scope
-- is the type, key the saga's, reason the step.
CREATE TABLE {schema}.audit (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  happened_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  database_user text NOT NULL DEFAULT session_user,
  operator      text,
  note          text,
  action        text NOT NULL,
  lane          smallint,
  message_id    bigint,
  key           text COLLATE "C",
  subject       text,
  reason        text,
  messages      bigint NOT NULL DEFAULT 1,
  scope         text,
  command       text COLLATE "C" NOT NULL
    DEFAULT coalesce(nullif(current_setting('oncebox.command', true), ''), 'transaction ' || pg_current_xact_id()),
  undoes        bigint,
  CONSTRAINT audit_action CHECK (action IN (
    'retry', 'discard', 'replay', 'prune', 'cancel', 'skip', 'abandon', 'resend', 'bury', 'pause', 'throttle', 'resume',
    'enable-events', 'disable-events', 'adopt', 'change-scope', 'expect', 'expect-no-more', 'undo',
    'begin-canary', 'stop-canary', 'continue-canary', 'edit'
  )),
  CONSTRAINT audit_operator_size CHECK (octet_length(operator) BETWEEN 1 AND 255),
  CONSTRAINT audit_note_size CHECK (octet_length(note) BETWEEN 1 AND 1000),
  CONSTRAINT audit_message CHECK (scope IS NOT NULL OR action = 'resend' OR (key IS NULL) = (action IN (
    'prune', 'resend', 'pause', 'throttle', 'resume', 'enable-events', 'disable-events', 'adopt',
    'begin-canary', 'stop-canary', 'continue-canary'
  ))),
  -- A resend of messages that are gone meanwhile closes the loss all the same.
  CONSTRAINT audit_messages CHECK (messages >= 1 OR messages = 0 AND action = 'resend'),
  CONSTRAINT audit_undoes CHECK ((undoes IS NOT NULL) = (action = 'undo'))
);
COMMENT ON TABLE {schema}.audit IS 'The actions of operators: a row for each message and action. Never deleted by Oncebox.';
COMMENT ON COLUMN {schema}.audit.operator IS 'Who it was by their own word (--by); database_user is who the database knows.';
COMMENT ON COLUMN {schema}.audit.reason IS 'Why the message was dead; for a replay the name of the request; of a pause or throttle its kind and value; of an edit the new key, and digests.';
COMMENT ON COLUMN {schema}.audit.scope IS 'Who gave the message up, for a dead letter of an inbox; message_id is the letter''s id then.';
COMMENT ON COLUMN {schema}.audit.command IS 'The same for all rows of one command, or of one transaction that called the functions itself.';
COMMENT ON COLUMN {schema}.audit.undoes IS 'Of undo: the id of the row that it took back.';
CREATE INDEX audit_key ON {schema}.audit (key);
CREATE INDEX audit_discards ON {schema}.audit (command) WHERE action IN ('discard', 'edit');
CREATE UNIQUE INDEX audit_undone ON {schema}.audit (undoes) WHERE undoes IS NOT NULL;

-- Messages and dead letters that operators discarded, for undo_discard(): they are gone from their
-- tables, so no program that reads these needs to know of them. And messages as they were before
-- an edit.
CREATE TABLE {schema}.kept (
  audit      bigint NOT NULL,
  origin     text NOT NULL,
  lane       smallint,
  id         bigint NOT NULL,
  lane_floor bigint,
  follower   bigint,
  bytes      bigint NOT NULL,
  kept_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  columns    jsonb NOT NULL,
  payload    bytea NOT NULL,
  CONSTRAINT kept_pkey PRIMARY KEY (audit) INCLUDE (bytes),
  CONSTRAINT kept_origin CHECK (origin IN ('dead_letter', 'parked', 'edited') AND (origin <> 'dead_letter') = (lane IS NOT NULL))
);
COMMENT ON TABLE {schema}.kept IS 'Rows that operators discarded or edited, as they were: for a day, and the newest 100,000 of at most 1 GiB. audit is the row that records it.';
COMMENT ON COLUMN {schema}.kept.lane_floor IS 'All messages of the lane up to this id had been sent, or set aside, by then.';
COMMENT ON COLUMN {schema}.kept.follower IS 'The next message of its ordering key that was set aside then.';
COMMENT ON COLUMN {schema}.kept.columns IS 'All columns of the row but the payload; of an edited one also edited, the new key.';
CREATE INDEX kept_age ON {schema}.kept (kept_at);

-- How long a row can be brought back.
CREATE FUNCTION {schema}.kept_for() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN interval '1 day';

-- A batch at a time: relays, consumers and the discards themselves call it.
CREATE FUNCTION {schema}.forget_kept() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone bigint;
BEGIN
  DELETE FROM {schema}.kept AS k
  WHERE k.audit IN (
    SELECT o.audit
    FROM {schema}.kept AS o
    WHERE o.kept_at < clock_timestamp() - {schema}.kept_for()
    ORDER BY o.kept_at
    LIMIT 10000
  );
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;
COMMENT ON FUNCTION {schema}.forget_kept IS 'For relays: forgets rows that operators discarded more than a day ago. Returns how many; 10,000 means that there may be more.';

-- Before a batch is discarded, so that it is kept at least as long as the next one.
CREATE FUNCTION {schema}.bound_kept() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT {schema}.forget_kept();
  DELETE FROM {schema}.kept AS k
  WHERE k.audit <= (
    SELECT max(o.audit)
    FROM (
      SELECT n.audit, row_number() OVER newest AS place, sum(n.bytes) OVER newest AS bytes
      FROM {schema}.kept AS n
      WINDOW newest AS (ORDER BY n.audit DESC)
    ) AS o
    WHERE o.place > 100000 OR o.bytes > 1073741824
  )
$$;
COMMENT ON FUNCTION {schema}.bound_kept IS 'Private: forgets the oldest discarded rows beyond the bounds.';

-- A relay writes its row when it starts and every minute; nothing per message.
CREATE TABLE {schema}.relay (
  id                uuid NOT NULL DEFAULT gen_random_uuid(),
  retention_seconds float8,
  dead_blocks       boolean NOT NULL,
  seen_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT relay_pkey PRIMARY KEY (id),
  CONSTRAINT relay_retention CHECK (retention_seconds > 0)
);
COMMENT ON TABLE {schema}.relay IS 'The relays that were at work lately, with the settings that all of them should share. A row that is not renewed is deleted.';
COMMENT ON COLUMN {schema}.relay.retention_seconds IS 'How long settled messages are kept; NULL is for ever.';
COMMENT ON COLUMN {schema}.relay.dead_blocks IS 'Whether a dead message holds back its ordering key (on_dead = block).';

-- Everywhere the name of the schema; a fresh installation gets names of its own before its
-- transaction ends (schema/src/sql/role_prefix.sql).
CREATE TABLE {schema}.installation (
  only_row    boolean NOT NULL DEFAULT true,
  role_prefix text NOT NULL,
  CONSTRAINT installation_pkey PRIMARY KEY (only_row),
  CONSTRAINT installation_only_row CHECK (only_row)
);
COMMENT ON TABLE {schema}.installation IS 'One row: settings of this database alone.';
COMMENT ON COLUMN {schema}.installation.role_prefix IS 'The beginning of the names of the four roles. Roles are the cluster''s: a name of this database''s own keeps other databases'' members out.';
INSERT INTO {schema}.installation (role_prefix) VALUES ('{name}');

-- Where the outbox lives, as its relays noted it; no row before the first relay. Rows copied into
-- another database say so by it: relays claim nothing there until they know that the original is
-- gone. See docs/backup.md.
CREATE TABLE {schema}.home (
  only_row          boolean NOT NULL DEFAULT true,
  token             text NOT NULL DEFAULT left(replace(gen_random_uuid()::text, '-', ''), 12),
  system_identifier bigint NOT NULL,
  database_oid      bigint NOT NULL,
  database_name     text NOT NULL,
  address           text NOT NULL,
  noted_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  moved_at          timestamptz,
  rival             text,
  rival_since       timestamptz,
  rival_seen_at     timestamptz,
  CONSTRAINT home_pkey PRIMARY KEY (only_row),
  CONSTRAINT home_only_row CHECK (only_row),
  CONSTRAINT home_rival CHECK ((rival IS NULL) = (rival_since IS NULL) AND (rival IS NULL) = (rival_seen_at IS NULL))
);
COMMENT ON TABLE {schema}.home IS 'Where this outbox lives: the cluster and the database in which relays serve it. In a copy it names the original.';
COMMENT ON COLUMN {schema}.home.token IS 'Relays of this outbox find each other over NATS by it, those of a copy too. Databases made from a template that no relay has served have one each.';
COMMENT ON COLUMN {schema}.home.address IS 'Servers and database as the configuration of the last relay names them.';
COMMENT ON COLUMN {schema}.home.moved_at IS 'When an operator last said that the original is here: of two databases, the one of which that was said later is the senior.';
COMMENT ON COLUMN {schema}.home.rival IS 'The address of another database in which a relay serves the same outbox, as a relay of this database found over NATS.';

-- The consequence in this database. new: no relay has served the outbox yet. here: it is the one.
-- moved: perhaps, since it has the name of the original, or the original is gone from this cluster;
-- relays ask over NATS whether another relay serves it. copy: the original is another database.
CREATE VIEW {schema}.home_here AS
SELECT
  here.system_identifier, here.database_oid, here.database_name,
  h.token, h.database_name AS noted_name, h.address, h.noted_at, h.moved_at, h.rival, h.rival_since, h.rival_seen_at,
  CASE
    WHEN h.only_row IS NULL THEN 'new'
    WHEN h.system_identifier = here.system_identifier AND h.database_oid = here.database_oid THEN 'here'
    WHEN h.database_name = here.database_name AND NOT coalesce(original.datname = h.database_name, false) THEN 'moved'
    WHEN h.system_identifier = here.system_identifier AND original.oid IS NULL THEN 'moved'
    ELSE 'copy'
  END AS verdict
FROM (
  SELECT s.system_identifier, d.oid::bigint AS database_oid, d.datname::text AS database_name
  FROM pg_control_system() AS s
  JOIN pg_database AS d ON d.datname = current_database()
  OFFSET 0
) AS here
LEFT JOIN {schema}.home AS h ON true
LEFT JOIN pg_database AS original
  ON h.system_identifier = here.system_identifier AND original.oid::bigint = h.database_oid;

-- A cursor's floor says that restored rows are settled, with any xact. A row that is written
-- afterwards with an id that low (the sequence was set back, or did not come with the rows) is not
-- one of them.
CREATE TABLE {schema}.reset (
  lane smallint NOT NULL,
  snap pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
  CONSTRAINT reset_pkey PRIMARY KEY (lane)
);
COMMENT ON TABLE {schema}.reset IS 'When a lane was found to hold messages of another cluster: up to its floor, messages visible in snap are settled or parked.';

-- The turn of a segment, by its table.
CREATE FUNCTION {schema}.turn_of(part oid) RETURNS bigint
LANGUAGE sql STABLE AS $$
  SELECT s.turn FROM {schema}.segment AS s WHERE to_regclass(format('{schema}.message_%s', s.number)) = $1
$$;

-- The transaction that wrote a row here, which for a restored row is not its xact.
CREATE FUNCTION {schema}.written_by(row_xmin xid) RETURNS xid8
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN greatest(pg_current_xact_id()::text::bigint - age(row_xmin), 3)::text::xid8;

-- The last id that was drawn, and how far ids must have come. Were they lower, new messages would
-- count as settled, or would be refused because their ids are taken.
CREATE VIEW {schema}.message_ids AS
SELECT
  CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END AS stood_at,
  coalesce((
    SELECT max(greatest(c.floor, c.high, c.reset_until, newest.id))
    FROM {schema}.lane_cursor AS c
    LEFT JOIN LATERAL (
      SELECT m.id
      FROM {schema}.log AS m
      WHERE m.lane = c.lane
      ORDER BY m.id DESC
      LIMIT 1
    ) AS newest ON true
  ), 0) AS needed
FROM {schema}.message_id_seq AS s;
COMMENT ON VIEW {schema}.message_ids IS 'Where the sequence of ids stands, and where it must stand at least.';

-- Raises the sequence of ids above every cursor and message, and sets aside, to be sent, messages
-- with ids so low that a cursor calls them settled. Returns NULL if there is nothing to do.
--
-- Nothing is half done after a crash, since a sequence that is restarted is part of the
-- transaction. The lock on the sequence waits for each transaction that has drawn an id and lets no
-- other draw one, so every such row is visible; the function gives up after half a second, for the
-- sake of the producers that wait meanwhile. Maintenance, lanes, sequence: always in this order,
-- and no transaction that holds the sequence waits for a lane.
CREATE FUNCTION {schema}.repair_ids(OUT stood_at bigint, OUT raised_to bigint, OUT set_aside bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
BEGIN
  PERFORM FROM {schema}.maintenance FOR UPDATE;
  PERFORM FROM {schema}.lane AS l ORDER BY l.lane FOR UPDATE;
  -- Changes nothing, but takes the lock.
  ALTER SEQUENCE {schema}.message_id_seq CACHE 1;
  SELECT s.stood_at, s.needed INTO stood_at, raised_to FROM {schema}.message_ids AS s;
  IF stood_at >= raised_to THEN
    stood_at := NULL;
    raised_to := NULL;
    RETURN;
  END IF;
  -- Restored rows were written by a later transaction than their xact, or an earlier one; those of
  -- here by their xact, or a part of it, which has a later id. So more than those of here may be
  -- found: they are sent once more.
  INSERT INTO {schema}.parked (
    lane, id, turn, ordering_key, attempts, next_attempt_at, error, key, subject, headers, payload, created_at
  )
  SELECT
    m.lane,
    m.id,
    {schema}.turn_of(m.tableoid),
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
  FROM {schema}.lane_cursor AS c
  CROSS JOIN pg_control_system() AS here
  CROSS JOIN LATERAL (
    SELECT n.lane, n.id, n.tableoid, n.ordering_key, n.key, n.subject, n.headers, n.payload, n.created_at
    FROM {schema}.log AS n
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
      AND {schema}.written_by(n.xmin) >= n.xact
  ) AS m
  WHERE NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = m.lane AND d.id = m.id)
  ON CONFLICT ON CONSTRAINT parked_pkey DO NOTHING;
  GET DIAGNOSTICS set_aside = ROW_COUNT;
  UPDATE {schema}.reset SET snap = pg_current_snapshot();
  EXECUTE format('ALTER SEQUENCE {schema}.message_id_seq RESTART WITH %s', raised_to + 1);
END $$;
