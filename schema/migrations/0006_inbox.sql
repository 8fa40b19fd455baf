-- The inbox: one row per consumed key, written in the handler's transaction, dead letters, and the
-- attempts and pauses of messages that have not ended.

-- Without CHECKs, which cost a tenth of the throughput of a small handler. PostgreSQL checks the
-- lengths of names with their types. The rest is the inbox's own, which alone writes here: a
-- fingerprint is 32 bytes, a status one of completed, rejected, dead, an outcome is measured before
-- it is sent.
CREATE TABLE {schema}.inbox (
  scope       varchar(255) COLLATE "C" NOT NULL,
  tenant      varchar(255) COLLATE "C" NOT NULL,
  key         varchar(255) COLLATE "C" NOT NULL,
  fingerprint bytea NOT NULL,
  status      text NOT NULL,
  outcome     bytea,
  message_id  bigint,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT inbox_pkey PRIMARY KEY (scope, tenant, key)
);
COMMENT ON TABLE {schema}.inbox IS 'Consumed keys. A committed row means that the key was handled; status says how it ended.';
COMMENT ON COLUMN {schema}.inbox.outcome IS 'The reply as JSON (completed, rejected; NULL stands for null), or the reason as text (dead).';

CREATE TABLE {schema}.dead_letter (
  id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  scope           text COLLATE "C" NOT NULL,
  tenant          text NOT NULL,
  key             text COLLATE "C",
  subject         text NOT NULL,
  headers         jsonb NOT NULL,
  payload         bytea NOT NULL,
  stream          text COLLATE "C",
  stream_sequence bigint,
  stored_at       timestamptz,
  deliveries      bigint NOT NULL,
  reason          text NOT NULL,
  created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  fingerprint     bytea,
  CONSTRAINT dead_letter_reason_size CHECK (octet_length(reason) BETWEEN 1 AND 1000),
  CONSTRAINT dead_letter_origin CHECK ((stream IS NULL) = (stream_sequence IS NULL) AND (stream IS NULL) = (stored_at IS NULL)),
  CONSTRAINT dead_letter_once UNIQUE (scope, stream, stream_sequence, stored_at)
);
COMMENT ON TABLE {schema}.dead_letter IS 'Messages that a consumer gave up on, whole, with the reason.';
-- The letters of a key, which `oncebox why` looks for.
CREATE INDEX dead_letter_key ON {schema}.dead_letter (key) WHERE key IS NOT NULL;
COMMENT ON COLUMN {schema}.dead_letter.key IS 'NULL when the message has no valid key.';
COMMENT ON COLUMN {schema}.dead_letter.fingerprint IS 'That of the key, for a payload that stays in the Object Store, where the headers say; NULL when the payload is here.';
COMMENT ON COLUMN {schema}.dead_letter.stored_at IS 'When the stream stored the message: a recreated stream counts its sequence from 1 again.';

CREATE TABLE {schema}.consumer_position (
  stream         text COLLATE "C" NOT NULL,
  durable        text COLLATE "C" NOT NULL,
  stream_created text NOT NULL,
  next_sequence  bigint NOT NULL,
  takeovers      integer NOT NULL,
  updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT consumer_position_pkey PRIMARY KEY (stream, durable),
  CONSTRAINT consumer_position_bounds CHECK (next_sequence >= 1 AND takeovers >= 0)
);
COMMENT ON TABLE {schema}.consumer_position IS 'Where the strictly ordered consumer of a stream was last continued. Written before its JetStream consumer is recreated, so that a crash between the two loses nothing.';
COMMENT ON COLUMN {schema}.consumer_position.takeovers IS 'How many processes took over in a row without getting past next_sequence: counted as deliveries of that message.';

CREATE TABLE {schema}.inbox_snooze (
  scope      text COLLATE "C" NOT NULL,
  tenant     text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  message    text COLLATE "C" NOT NULL,
  delivery   bigint NOT NULL,
  attempts   bigint NOT NULL,
  snoozes    bigint NOT NULL DEFAULT 1,
  reason     text NOT NULL,
  snoozed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  due_at     timestamptz NOT NULL,
  CONSTRAINT inbox_snooze_pkey PRIMARY KEY (scope, tenant, key, message),
  CONSTRAINT inbox_snooze_counts CHECK (delivery >= 1 AND attempts >= 0 AND snoozes >= 1),
  CONSTRAINT inbox_snooze_reason_size CHECK (octet_length(reason) BETWEEN 1 AND 1000)
);
COMMENT ON TABLE {schema}.inbox_snooze IS 'Messages that a handler has snoozed. A row outlives its message''s end for a while.';
COMMENT ON COLUMN {schema}.inbox_snooze.message IS 'Which copy: stream, sequence, and when the stream stored it; empty for one that is in no stream.';
COMMENT ON COLUMN {schema}.inbox_snooze.delivery IS 'The number of the last delivery that was snoozed.';
COMMENT ON COLUMN {schema}.inbox_snooze.attempts IS 'How many attempts had failed before it.';
COMMENT ON COLUMN {schema}.inbox_snooze.snoozed_at IS 'Since when it has been snoozed again and again.';
CREATE INDEX inbox_snooze_due ON {schema}.inbox_snooze (scope, due_at);

-- How often a message was tried, which JetStream's count of deliveries does not tell, and how its
-- last attempt failed.
CREATE TABLE {schema}.inbox_attempt (
  scope           text COLLATE "C" NOT NULL,
  tenant          text COLLATE "C" NOT NULL,
  key             text COLLATE "C" NOT NULL,
  message         text COLLATE "C" NOT NULL,
  failures        bigint NOT NULL DEFAULT 0,
  begun           bigint NOT NULL DEFAULT 0,
  touched_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  reason          text,
  failed_at       timestamptz,
  due_at          timestamptz,
  stream          text COLLATE "C",
  stream_sequence bigint,
  subject         text,
  first_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT inbox_attempt_pkey PRIMARY KEY (scope, tenant, key, message),
  CONSTRAINT inbox_attempt_counts CHECK (failures >= 0 AND begun >= 0),
  CONSTRAINT inbox_attempt_failure CHECK ((failed_at IS NULL) = (reason IS NULL)),
  CONSTRAINT inbox_attempt_reason_size CHECK (octet_length(reason) BETWEEN 1 AND 1000)
);
COMMENT ON TABLE {schema}.inbox_attempt IS 'Messages that failed, or were delivered again before they had ended. A row outlives its message''s end for a while.';
COMMENT ON COLUMN {schema}.inbox_attempt.message IS 'Which copy: stream, sequence, and when the stream stored it; empty for one that is in no stream.';
COMMENT ON COLUMN {schema}.inbox_attempt.failures IS 'How many attempts have failed.';
COMMENT ON COLUMN {schema}.inbox_attempt.reason IS 'Why the last one failed; NULL when none has. The message is failing as long as its key is not in inbox.';
COMMENT ON COLUMN {schema}.inbox_attempt.due_at IS 'When it is delivered again; NULL when the consumer has not said.';
COMMENT ON COLUMN {schema}.inbox_attempt.first_at IS 'When the row was written: an operator confirms the rows that a list showed, not later ones.';
COMMENT ON COLUMN {schema}.inbox_attempt.begun IS 'How many runs have begun since and left no trace: the first beside others, each further one alone among its like.';
CREATE INDEX inbox_attempt_touched ON {schema}.inbox_attempt (scope, touched_at);
CREATE INDEX inbox_attempt_failed ON {schema}.inbox_attempt (scope, failed_at) WHERE failed_at IS NOT NULL;

-- A batch claims all keys before its handlers run. A handler that commits by itself would commit
-- the keys of messages that no handler has run: the foreign key refuses it.
CREATE TABLE {schema}.inbox_batch_end (
  xact xid8 NOT NULL,
  CONSTRAINT inbox_batch_end_pkey PRIMARY KEY (xact),
  CONSTRAINT inbox_batch_end_empty CHECK (false)
);
COMMENT ON TABLE {schema}.inbox_batch_end IS 'Always empty.';

CREATE TABLE {schema}.inbox_batch (
  xact xid8 NOT NULL DEFAULT pg_current_xact_id(),
  CONSTRAINT inbox_batch_pkey PRIMARY KEY (xact),
  CONSTRAINT inbox_batch_is_committed_by_the_inbox_only FOREIGN KEY (xact)
    REFERENCES {schema}.inbox_batch_end (xact) DEFERRABLE INITIALLY DEFERRED
);
COMMENT ON TABLE {schema}.inbox_batch IS 'Always empty when committed: each batch inserts a row when it begins and deletes it right before its COMMIT. A COMMIT in between, by a handler, fails on the foreign key, which nothing fulfils.';

-- How long each consumer keeps its keys and dead letters. Both modes keep a key that has not ended
-- in tables of their own, so processes of both would handle one message twice: the first process
-- that uses a scope sets its mode.
CREATE TABLE {schema}.inbox_scope (
  scope               text COLLATE "C" NOT NULL,
  retention_seconds   double precision,
  registered_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  kind                text NOT NULL DEFAULT 'consumer',
  dead_letter_seconds double precision,
  mode                text,
  CONSTRAINT inbox_scope_pkey PRIMARY KEY (scope),
  CONSTRAINT inbox_scope_retention CHECK (retention_seconds > 0 AND retention_seconds <= 3162240000),
  CONSTRAINT inbox_scope_kind CHECK (kind IN ('consumer', 'http')),
  CONSTRAINT inbox_scope_dead_letters CHECK (dead_letter_seconds > 0 AND dead_letter_seconds <= 3162240000),
  CONSTRAINT inbox_scope_mode CHECK (mode IN ('transaction', 'lease'))
);
COMMENT ON TABLE {schema}.inbox_scope IS 'The consumers and the HTTP routes of this database, as their processes registered them when they started.';
COMMENT ON COLUMN {schema}.inbox_scope.retention_seconds IS 'How long a key is kept at least; NULL is for ever.';
COMMENT ON COLUMN {schema}.inbox_scope.kind IS 'consumer: of messages; http: a route, whose keys are repeated by clients, not by a stream.';
COMMENT ON COLUMN {schema}.inbox_scope.dead_letter_seconds IS 'How long a dead letter is kept at least, and never shorter than a key; NULL is for ever.';
COMMENT ON COLUMN {schema}.inbox_scope.mode IS 'transaction: keys are claimed in the handler''s transaction; lease: before it, under a lease. A process of the other mode is refused; see change_inbox_mode.';

-- How far the deletion of older keys has come; see sweep_inboxes().
CREATE TABLE {schema}.inbox_sweep (
  only_row    boolean NOT NULL DEFAULT true,
  next_block  bigint NOT NULL DEFAULT 0,
  finished_at timestamptz,
  basis       text COLLATE "C" NOT NULL DEFAULT '',
  CONSTRAINT inbox_sweep_pkey PRIMARY KEY (only_row),
  CONSTRAINT inbox_sweep_only_row CHECK (only_row),
  CONSTRAINT inbox_sweep_block CHECK (next_block >= 0)
);
COMMENT ON TABLE {schema}.inbox_sweep IS 'One row, locked by the process that deletes keys older than their retention. next_block: where in the tables it goes on; finished_at: when it last came to the end.';
COMMENT ON COLUMN {schema}.inbox_sweep.basis IS 'The files and retentions for which inbox_sweep_range is right.';
INSERT INTO {schema}.inbox_sweep DEFAULT VALUES;

CREATE TABLE {schema}.inbox_sweep_range (
  first_block bigint NOT NULL,
  due_at      timestamptz NOT NULL,
  CONSTRAINT inbox_sweep_range_pkey PRIMARY KEY (first_block)
);
COMMENT ON TABLE {schema}.inbox_sweep_range IS 'For each range of blocks: before that time no row in it is past its retention.';

-- The actions of operators on inboxes, each with its audit, as in 0004_operations.sql.

-- Tells a copy from another message with the same key: `fingerprint` in oncebox_claims.
CREATE FUNCTION {schema}.inbox_fingerprint(payload bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256('oncebox payload 1'::bytea || '\x00'::bytea || payload);

-- The key is freed only where it died of this very payload: a letter about another payload under a
-- used key (a mismatch) leaves the settled key as it is. A letter has the fingerprint of a payload
-- that stays in the Object Store. The number, microseconds since 1970, makes an id for the broker
-- that it has not seen: it must store the message again, however often that was tried.
CREATE FUNCTION {schema}.retry_letter(id bigint, by text, note text) RETURNS TABLE (
  outbox text, key text, subject text, headers text, payload bytea, number bigint
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH taken AS (
    DELETE FROM {schema}.dead_letter
    WHERE dead_letter.id = $1
    RETURNING dead_letter.id, scope, tenant, key, subject, headers, payload, reason, fingerprint
  ),
  freed AS (
    DELETE FROM {schema}.inbox AS i
    USING taken AS t
    WHERE i.scope = t.scope
      AND i.tenant = t.tenant
      AND i.key = t.key
      AND i.status = 'dead'
      AND i.fingerprint = coalesce(t.fingerprint, {schema}.inbox_fingerprint(t.payload))
  ),
  noted AS (
    INSERT INTO {schema}.audit (operator, note, action, message_id, scope, key, subject, reason)
    SELECT $2, $3, 'retry', t.id, t.scope, t.key, t.subject, t.reason
    FROM taken AS t
  )
  SELECT
    (SELECT o.identity FROM {schema}.outbox AS o) AS outbox,
    t.key,
    t.subject,
    t.headers::text AS headers,
    t.payload,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS number
  FROM taken AS t
$$;
COMMENT ON FUNCTION {schema}.retry_letter IS 'For operators: takes a dead letter out, and frees its key if it died of this payload. The caller publishes the message, and then commits.';

CREATE FUNCTION {schema}.forget_failing(scope text, tenant text, key text, message text, by text, note text) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH gone AS (
    DELETE FROM {schema}.inbox_attempt AS a
    WHERE a.scope = $1
      AND a.tenant = $2
      AND a.key = $3
      AND a.message = $4
    RETURNING a.scope, a.key, a.subject, a.reason
  )
  INSERT INTO {schema}.audit (operator, note, action, scope, key, subject, reason)
  SELECT $5, $6, 'bury', g.scope, g.key, g.subject, g.reason
  FROM gone AS g
  RETURNING id
$$;
COMMENT ON FUNCTION {schema}.forget_failing IS 'For operators: forgets a failing message that its stream has no more.';

-- When a stream has stored a message: a moment that every client and RFC 3339 can write.
CREATE FUNCTION {schema}.check_stored_at(stored_at timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
  IF stored_at < '0001-01-01 00:00+00' OR stored_at >= '10000-01-01 00:00+00' THEN
    RAISE EXCEPTION 'stored_at is %, which is no moment of the years 1 to 9999', stored_at
      USING ERRCODE = 'OB011', HINT = 'It says when the stream has stored the message. Leave it out, with stream and stream_sequence, for one that is in no stream.';
  END IF;
  RETURN true;
END $$;

-- Gives a failing message up for an operator, in either mode of its scope: see bury() in
-- 0008_claims.sql. Under a lease it takes the claim from an owner that does not work on it any
-- more, and ends it in that one's name: see give_up_leased() in 0018_endings.sql.
CREATE FUNCTION {schema}.bury_failing(
  scope text, tenant text, key text, payload bytea, subject text, headers jsonb, stream text, stream_sequence bigint,
  stored_at timestamptz, failures bigint, reason text, by text, note text
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  answer text;
  kept text := {schema}.bounded_reason('an operator gave it up: ' || bury_failing.reason);
  claimed record;
  -- The operator has a message as its stream has it, which may be without its large payload.
  is_elsewhere boolean := bury_failing.payload = ''
    AND EXISTS (SELECT FROM jsonb_object_keys(bury_failing.headers) AS h (name) WHERE lower(h.name) = 'oncebox-object');
BEGIN
  PERFORM {schema}.check_stored_at(bury_failing.stored_at);
  IF (SELECT s.mode FROM {schema}.inbox_scope AS s WHERE s.scope = bury_failing.scope) IS DISTINCT FROM 'lease' THEN
    answer := {schema}.bury(bury_failing.scope, bury_failing.key, bury_failing.payload, kept, bury_failing.subject,
      bury_failing.headers, bury_failing.tenant, NULL, bury_failing.stream, bury_failing.stream_sequence,
      bury_failing.stored_at, bury_failing.failures);
    INSERT INTO {schema}.audit (operator, note, action, scope, key, subject, reason)
    SELECT bury_failing.by, bury_failing.note, 'bury', bury_failing.scope, bury_failing.key, bury_failing.subject,
           bury_failing.reason
    WHERE answer = 'dead';
    RETURN answer;
  END IF;
  UPDATE {schema}.inbox_claim AS c
  SET state = 'running', reason = NULL
  WHERE c.scope = bury_failing.scope
    AND c.tenant = bury_failing.tenant
    AND c.key = bury_failing.key
    AND (c.fingerprint = {schema}.inbox_fingerprint(bury_failing.payload) OR is_elsewhere)
    AND (c.state <> 'running' OR c.lease_until < clock_timestamp())
  RETURNING c.owner, c.epoch INTO claimed;
  IF NOT FOUND THEN
    RETURN CASE WHEN EXISTS (
      SELECT
      FROM {schema}.inbox AS i
      WHERE i.scope = bury_failing.scope AND i.tenant = bury_failing.tenant AND i.key = bury_failing.key
    ) THEN 'replayed' ELSE 'in_flight' END;
  END IF;
  PERFORM {schema}.give_up_leased(bury_failing.scope, bury_failing.tenant, bury_failing.key, claimed.owner, claimed.epoch,
    bury_failing.subject, bury_failing.headers, bury_failing.payload, bury_failing.stream, bury_failing.stream_sequence,
    bury_failing.stored_at, bury_failing.failures, kept);
  INSERT INTO {schema}.audit (operator, note, action, scope, key, subject, reason)
  VALUES (bury_failing.by, bury_failing.note, 'bury', bury_failing.scope, bury_failing.key, bury_failing.subject,
          bury_failing.reason);
  RETURN 'dead';
END $$;
COMMENT ON FUNCTION {schema}.bury_failing IS 'For operators: gives a message up that fails, in either mode of its scope. Answers dead; or replayed, rejected, in_flight, mismatch, when that decides instead.';

-- A reason as the tables take it: 1 to 1000 bytes; `bounded` in oncebox_claims.
CREATE FUNCTION {schema}.bounded_reason(reason text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
  kept text := coalesce(nullif(left(reason, 1000), ''), 'no reason given');
BEGIN
  WHILE octet_length(convert_to(kept, 'UTF8')) > 1000 LOOP
    kept := left(kept, -((octet_length(convert_to(kept, 'UTF8')) - 997) / 4));
  END LOOP;
  RETURN kept;
END $$;
