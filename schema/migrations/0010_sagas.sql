-- The orchestrator of sagas: instances, their steps, and the events that wait for them.
-- saga/src/decide.rs is the one state machine; requests of operators are events, which an
-- orchestrator applies.
CREATE TABLE {schema}.saga (
  id          bigint GENERATED ALWAYS AS IDENTITY,
  type        text COLLATE "C" NOT NULL,
  business_id text COLLATE "C" NOT NULL,
  key         text COLLATE "C" NOT NULL,
  version     integer NOT NULL,
  fingerprint text COLLATE "C" NOT NULL,
  state       text COLLATE "C" NOT NULL DEFAULT 'running',
  direction   text NOT NULL DEFAULT 'forward',
  reason      text,
  data        jsonb NOT NULL,
  began_with  bytea NOT NULL,
  revision    bigint NOT NULL DEFAULT 1,
  deadline_at timestamptz,
  due_at      timestamptz,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at timestamptz,
  scope       text COLLATE "C" NOT NULL,
  CONSTRAINT saga_pkey PRIMARY KEY (id),
  CONSTRAINT saga_business_id_unique UNIQUE (type, business_id),
  CONSTRAINT saga_key_unique UNIQUE (key),
  CONSTRAINT saga_sizes CHECK (octet_length(type) BETWEEN 1 AND 64 AND octet_length(business_id) BETWEEN 1 AND 128
    AND octet_length(key) BETWEEN 1 AND 255 AND octet_length(reason) <= 1000),
  CONSTRAINT saga_state CHECK (state IN
    ('running', 'compensating', 'stuck', 'quarantined', 'completed', 'compensated', 'abandoned')),
  CONSTRAINT saga_direction CHECK (direction IN ('forward', 'backward')),
  CONSTRAINT saga_finished CHECK ((finished_at IS NOT NULL) = (state IN ('completed', 'compensated', 'abandoned'))),
  CONSTRAINT saga_due CHECK (due_at IS NULL OR finished_at IS NULL AND state <> 'quarantined')
);
COMMENT ON TABLE {schema}.saga IS 'Instances of business processes. Each change of one is a transaction that holds its row.';
COMMENT ON COLUMN {schema}.saga.type IS 'The name of its definition.';
COMMENT ON COLUMN {schema}.saga.business_id IS 'The business object, such as the order''s number; once per type.';
COMMENT ON COLUMN {schema}.saga.key IS 'The key that those of its commands are derived from.';
COMMENT ON COLUMN {schema}.saga.version IS 'The version of the definition that it began with and goes on with.';
COMMENT ON COLUMN {schema}.saga.fingerprint IS 'That of the graph of this version, in hexadecimal: an orchestrator that has no such graph leaves the instance alone.';
COMMENT ON COLUMN {schema}.saga.state IS 'stuck: a step, or a compensation, waits for an operator, others may go on. quarantined: it could not be read, and waits for an operator.';
COMMENT ON COLUMN {schema}.saga.direction IS 'forward until it is given up, backward from then on.';
COMMENT ON COLUMN {schema}.saga.reason IS 'Why it is compensating, stuck, quarantined, compensated or abandoned.';
COMMENT ON COLUMN {schema}.saga.began_with IS 'SHA-256 of the data that it began with, with its elements in any order: a start with the same business id and other data is refused.';
COMMENT ON COLUMN {schema}.saga.revision IS 'Grows with every change.';
COMMENT ON COLUMN {schema}.saga.deadline_at IS 'When all of it must have gone past its pivot, or be complete.';
COMMENT ON COLUMN {schema}.saga.due_at IS 'When an orchestrator has to look at it again: the first deadline, or now, because an operator asked for something.';
COMMENT ON COLUMN {schema}.saga.scope IS 'The scope of the orchestrator that started it; those of other scopes leave it alone.';
CREATE INDEX saga_due_at ON {schema}.saga (due_at) WHERE due_at IS NOT NULL;
-- Sagas in flight, and those that finished lately, are counted by type and state from an index
-- alone.
CREATE INDEX saga_open ON {schema}.saga (type, version, fingerprint, state, created_at) WHERE finished_at IS NULL;
CREATE INDEX saga_finished_at ON {schema}.saga (finished_at, type, state) WHERE finished_at IS NOT NULL;

CREATE TABLE {schema}.saga_definition (
  fingerprint   text COLLATE "C" NOT NULL,
  type          text COLLATE "C" NOT NULL,
  version       integer NOT NULL,
  graph         jsonb NOT NULL,
  registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  plan          jsonb,
  scope         text COLLATE "C",
  reply_to      text COLLATE "C",
  CONSTRAINT saga_definition_pkey PRIMARY KEY (fingerprint),
  CONSTRAINT saga_definition_plan CHECK (plan IS NULL OR scope IS NOT NULL AND reply_to IS NOT NULL)
);
CREATE UNIQUE INDEX saga_definition_start ON {schema}.saga_definition (type, version) WHERE plan IS NOT NULL;
COMMENT ON TABLE {schema}.saga_definition IS 'The graphs that orchestrators had when they started, for operators to look at, and the plans by which start_saga() starts sagas of files.';
COMMENT ON COLUMN {schema}.saga_definition.plan IS 'Of a file: the fields of the data, and the first commands. NULL: a program starts these sagas, or another file has replaced this one.';
COMMENT ON COLUMN {schema}.saga_definition.scope IS 'With a plan: the scope of the orchestrator that leads the sagas.';
COMMENT ON COLUMN {schema}.saga_definition.reply_to IS 'With a plan: the subject that participants answer to.';
COMMENT ON COLUMN {schema}.saga_definition.graph IS 'An array of steps: name, after (names), is_pivot, subject, compensation (a subject or null); of a file also needs, the fields of the replies of earlier steps that its commands cannot do without.';

-- A row for each step whose command was sent; the others are pending.
CREATE TABLE {schema}.saga_step (
  saga_id      bigint NOT NULL,
  step         text COLLATE "C" NOT NULL,
  state        text NOT NULL,
  attempt      integer NOT NULL,
  undo_attempt integer NOT NULL DEFAULT 0,
  in_doubt     boolean NOT NULL DEFAULT false,
  subject      text NOT NULL,
  payload      bytea NOT NULL,
  undo_subject text,
  undo_payload bytea,
  reason       text,
  deadline_at  timestamptz,
  sent_at      timestamptz NOT NULL,
  answered_at  timestamptz,
  undo_sent_at timestamptz,
  undone_at    timestamptz,
  CONSTRAINT saga_step_pkey PRIMARY KEY (saga_id, step),
  CONSTRAINT saga_step_saga FOREIGN KEY (saga_id) REFERENCES {schema}.saga (id) ON DELETE CASCADE,
  CONSTRAINT saga_step_state CHECK (state IN
    ('sent', 'done', 'rejected', 'failed', 'undoing', 'undo-failed', 'undone')),
  CONSTRAINT saga_step_undo CHECK ((undo_attempt > 0) = (undo_subject IS NOT NULL)
    AND (undo_subject IS NULL) = (undo_payload IS NULL)),
  CONSTRAINT saga_step_reason CHECK (octet_length(reason) <= 1000)
);
COMMENT ON TABLE {schema}.saga_step IS 'The steps of sagas that were sent, with their commands as they were sent.';
COMMENT ON COLUMN {schema}.saga_step.state IS 'rejected: the participant said no, and had no effect. failed: it is not known whether it had one. undo-failed: the compensation was rejected, died or is late.';
COMMENT ON COLUMN {schema}.saga_step.attempt IS 'The newest attempt: from the second on the command''s key ends with :#2 and so on.';
COMMENT ON COLUMN {schema}.saga_step.undo_attempt IS 'The newest attempt at the compensation, 0 before the first: from the second on its key ends with :#2:undo and so on.';
COMMENT ON COLUMN {schema}.saga_step.in_doubt IS 'It is not known whether an attempt before the newest had an effect: so its compensation is due even where the newest was rejected.';
COMMENT ON COLUMN {schema}.saga_step.reason IS 'Why it failed, or who skipped it.';
COMMENT ON COLUMN {schema}.saga_step.deadline_at IS 'When the answer to the newest command is late; NULL when none is awaited.';

-- Events that cannot be applied yet: answers that came early, or to an instance in quarantine, and
-- requests of operators.
CREATE TABLE {schema}.saga_event (
  id         bigint GENERATED ALWAYS AS IDENTITY,
  key        text COLLATE "C" NOT NULL,
  is_orphan  boolean NOT NULL,
  kind       text NOT NULL,
  step       text COLLATE "C" NOT NULL,
  attempt    integer NOT NULL,
  is_undo    boolean NOT NULL,
  payload    bytea NOT NULL DEFAULT '',
  reason     text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  scope      text COLLATE "C",
  CONSTRAINT saga_event_pkey PRIMARY KEY (id),
  CONSTRAINT saga_event_kind CHECK (kind IN ('done', 'rejected', 'dead', 'retry', 'skip')),
  CONSTRAINT saga_event_sizes CHECK (octet_length(key) BETWEEN 1 AND 255 AND octet_length(step) BETWEEN 1 AND 64
    AND octet_length(reason) <= 1000)
);
COMMENT ON TABLE {schema}.saga_event IS 'Answers that came too early for their saga, and requests of operators: applied by the next transaction that changes the saga.';
COMMENT ON COLUMN {schema}.saga_event.key IS 'The key of the saga.';
COMMENT ON COLUMN {schema}.saga_event.is_orphan IS 'No saga had this key when the answer came.';
COMMENT ON COLUMN {schema}.saga_event.scope IS 'The scope of the inbox that an answer or a death comes from; NULL for an answer that does not say.';
CREATE INDEX saga_event_key ON {schema}.saga_event (key, id);
CREATE INDEX saga_event_orphan ON {schema}.saga_event (created_at) WHERE is_orphan;

-- Requests of operators. Each function waits for a transaction that is changing the saga just now,
-- which takes milliseconds.
CREATE FUNCTION {schema}.ask_saga(saga_id bigint, step text, kind text, reply jsonb DEFAULT NULL) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  instance record;
  asked text[];
BEGIN
  SELECT s.key, s.state, s.direction INTO instance FROM {schema}.saga AS s WHERE s.id = ask_saga.saga_id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no saga %', ask_saga.saga_id USING ERRCODE = 'OB009';
  END IF;
  IF instance.state <> 'stuck' THEN
    RAISE EXCEPTION 'saga "%" is %, not stuck: no step of it waits for an operator', instance.key, instance.state
      USING ERRCODE = 'OB009';
  END IF;
  WITH waiting AS (
    SELECT t.step, t.attempt, t.undo_attempt
    FROM {schema}.saga_step AS t
    WHERE t.saga_id = ask_saga.saga_id AND (ask_saga.step IS NULL OR t.step = ask_saga.step)
      AND CASE instance.direction WHEN 'forward' THEN t.state IN ('rejected', 'failed') ELSE t.state = 'undo-failed' END
      -- Asked for once, it is done once.
      AND NOT EXISTS (
        SELECT FROM {schema}.saga_event AS e WHERE e.key = instance.key AND e.step = t.step AND e.kind IN ('retry', 'skip')
      )
  ),
  inserted AS (
    INSERT INTO {schema}.saga_event (key, is_orphan, kind, step, attempt, is_undo, payload)
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
  UPDATE {schema}.saga AS s
  SET due_at = clock_timestamp(), changed_at = clock_timestamp(), revision = s.revision + 1
  WHERE s.id = ask_saga.saga_id;
  RETURN asked;
END $$;
COMMENT ON FUNCTION {schema}.ask_saga IS 'The common part of retry_saga() and skip_saga_step(): an event for each step that waits, and an orchestrator that looks at once.';

-- A saga in quarantine has no step that waits: it is read again.
CREATE FUNCTION {schema}.retry_saga(saga_id bigint, step text DEFAULT NULL) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_state text;
BEGIN
  SELECT s.state INTO found_state FROM {schema}.saga AS s WHERE s.id = retry_saga.saga_id FOR UPDATE;
  IF found_state = 'quarantined' AND retry_saga.step IS NULL THEN
    UPDATE {schema}.saga AS s
    SET state = CASE s.direction WHEN 'forward' THEN 'running' ELSE 'compensating' END, reason = NULL,
        due_at = clock_timestamp(), changed_at = clock_timestamp(), revision = s.revision + 1
    WHERE s.id = retry_saga.saga_id;
    RETURN '{}';
  END IF;
  RETURN {schema}.ask_saga(retry_saga.saga_id, retry_saga.step, 'retry');
END $$;
COMMENT ON FUNCTION {schema}.retry_saga IS 'Ask for a new attempt at a step, or compensation, that waits for an operator; at all of them when no step is given. A saga in quarantine is read again. Returns the steps. Error OB009 when nothing waits.';

-- A step of a file may need the reply of an earlier one. Skipped without that reply, the saga would
-- come to a command that it cannot make.
CREATE FUNCTION {schema}.check_skipped_reply(saga_id bigint, step text, reply jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  needed record;
BEGIN
  SELECT s.key, later.name AS step, string_agg(DISTINCT need.field, ', ') AS fields INTO needed
  FROM {schema}.saga AS s
  JOIN {schema}.saga_definition AS d ON d.fingerprint = s.fingerprint
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
COMMENT ON FUNCTION {schema}.check_skipped_reply IS 'Refuses to skip a step whose reply a later one needs, where that is not given.';

-- In a saga in quarantine the step that is under way is skipped. Its answer may be the one that
-- cannot be read, so its events are deleted.
CREATE FUNCTION {schema}.skip_saga_step(saga_id bigint, step text, reply jsonb DEFAULT NULL) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  instance record;
  number integer;
BEGIN
  SELECT s.key, s.state, s.direction = 'backward' AS is_undo INTO instance
  FROM {schema}.saga AS s
  WHERE s.id = skip_saga_step.saga_id
  FOR UPDATE;
  PERFORM {schema}.check_skipped_reply(skip_saga_step.saga_id, skip_saga_step.step, skip_saga_step.reply);
  IF instance.state IS DISTINCT FROM 'quarantined' THEN
    RETURN {schema}.ask_saga(skip_saga_step.saga_id, skip_saga_step.step, 'skip', skip_saga_step.reply);
  END IF;
  SELECT CASE WHEN instance.is_undo THEN t.undo_attempt ELSE t.attempt END INTO number
  FROM {schema}.saga_step AS t
  WHERE t.saga_id = skip_saga_step.saga_id AND t.step = skip_saga_step.step
    AND CASE WHEN instance.is_undo THEN t.state IN ('undoing', 'undo-failed') ELSE t.state IN ('sent', 'rejected', 'failed') END;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'step "%" of saga "%" is not under way, nor does it wait for an operator', skip_saga_step.step, instance.key
      USING ERRCODE = 'OB009';
  END IF;
  DELETE FROM {schema}.saga_event AS e
  WHERE e.key = instance.key AND e.step = skip_saga_step.step AND e.is_undo = instance.is_undo;
  INSERT INTO {schema}.saga_event (key, is_orphan, kind, step, attempt, is_undo, payload)
  VALUES (instance.key, false, 'skip', skip_saga_step.step, number, instance.is_undo,
          coalesce(convert_to(skip_saga_step.reply::text, 'UTF8'), ''));
  UPDATE {schema}.saga AS s
  SET state = CASE WHEN instance.is_undo THEN 'compensating' ELSE 'running' END, reason = NULL,
      due_at = clock_timestamp(), changed_at = clock_timestamp(), revision = s.revision + 1
  WHERE s.id = skip_saga_step.saga_id;
  RETURN ARRAY[skip_saga_step.step];
END $$;
COMMENT ON FUNCTION {schema}.skip_saga_step IS 'Go on as if a step that waits for an operator were done, or its compensation, after it was done by hand. Of a saga in quarantine also one that is under way: its answers are deleted. With a reply, as if the participant had sent it. Returns the step. Error OB009 when it does not wait, OB011 when a later step of a file needs a reply that is not given.';

-- Ends a saga without its compensations.
CREATE FUNCTION {schema}.abandon_saga(saga_id bigint, why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  abandoned text;
BEGIN
  UPDATE {schema}.saga AS s
  SET state = 'abandoned', reason = left(abandon_saga.why, 250), due_at = NULL, finished_at = clock_timestamp(),
      changed_at = clock_timestamp(), revision = s.revision + 1
  WHERE s.id = abandon_saga.saga_id AND s.finished_at IS NULL
  RETURNING s.key INTO abandoned;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  DELETE FROM {schema}.saga_event AS e
  WHERE e.key = abandoned;
  -- Only a second or later attempt has a pause; any of them may be delayed, the newest or not.
  PERFORM {schema}.cancel_delayed(concat(abandoned, ':', t.step, ':#', n.number, u.undo))
  FROM {schema}.saga_step AS t
  CROSS JOIN (VALUES (''), (':undo')) AS u (undo)
  CROSS JOIN LATERAL generate_series(2, CASE u.undo WHEN '' THEN t.attempt ELSE t.undo_attempt END) AS n (number)
  WHERE t.saga_id = abandon_saga.saga_id;
  RETURN true;
END $$;
COMMENT ON FUNCTION {schema}.abandon_saga IS 'Give a saga up as it stands: attempts that are delayed are cancelled, nothing more is sent, nothing is undone, answers change nothing. Messages in the log already are delivered. False when it has finished already, or there is none.';

-- Steps go with their saga.
CREATE FUNCTION {schema}.sweep_sagas(keep interval, most integer) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH old AS (
    SELECT s.id
    FROM {schema}.saga AS s
    WHERE s.finished_at < clock_timestamp() - greatest(least($1, make_interval(secs => {schema}.retention_max())), interval '0')
    ORDER BY s.finished_at
    LIMIT least($2, 10000)
    FOR UPDATE SKIP LOCKED
  ),
  deleted AS (
    DELETE FROM {schema}.saga AS s
    USING old AS o
    WHERE s.id = o.id
    RETURNING s.id
  )
  SELECT count(*) FROM deleted
$$;
COMMENT ON FUNCTION {schema}.sweep_sagas IS 'Deletes sagas that finished longer ago than this, with their steps; 10000 at most. Their business ids are free again.';

-- The actions of operators on sagas, each with its audit, as in 0004_operations.sql. Each returns a
-- row for each audited one: the last command, and whether its dead letter was discarded.

-- The new attempt has a key of its own, so the dead letter of the last one is done with. Of several
-- letters with a command's key the participant's cannot be told (a copy may have died elsewhere):
-- they stay.
CREATE FUNCTION {schema}.retry_saga_as(saga_id bigint, step text, by text, note text) RETURNS TABLE (command text, is_discarded boolean)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH asked AS MATERIALIZED (
    SELECT s.id, s.type, s.key, s.direction = 'backward' AS is_undo, {schema}.retry_saga(s.id, $2::text) AS steps
    FROM {schema}.saga AS s
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
      FROM {schema}.saga_step AS p
      WHERE p.saga_id = a.id AND p.step = t.step
    ) AS c ON true
  ),
  only_letter AS (
    SELECT min(d.id) AS id
    FROM commands AS c
    JOIN {schema}.dead_letter AS d ON d.key = c.command COLLATE "C" AND d.subject = c.subject
    WHERE c.may_have_died
    GROUP BY c.command
    HAVING count(*) = 1
  ),
  gone AS (
    DELETE FROM {schema}.dead_letter AS d
    USING only_letter AS o
    WHERE d.id = o.id
    RETURNING d.id, d.scope, d.key, d.subject, d.reason
  ),
  discarded AS (
    INSERT INTO {schema}.audit (operator, note, action, message_id, scope, key, subject, reason)
    SELECT $3, $4, 'discard', g.id, g.scope, g.key, g.subject, g.reason
    FROM gone AS g
  ),
  noted AS (
    INSERT INTO {schema}.audit (operator, note, action, scope, key, reason)
    SELECT $3, $4, 'retry', c.type, c.key, c.step
    FROM commands AS c
  )
  SELECT
    c.command,
    CASE WHEN c.may_have_died THEN EXISTS (SELECT FROM gone AS g WHERE g.key = c.command COLLATE "C") END AS is_discarded
  FROM commands AS c
$$;
COMMENT ON FUNCTION {schema}.retry_saga_as IS 'For operators: retry_saga(), recorded. A dead letter of the last attempt is discarded, and recorded, too.';

CREATE FUNCTION {schema}.skip_saga_step_as(saga_id bigint, step text, by text, note text, reply jsonb DEFAULT NULL) RETURNS TABLE (command text, is_discarded boolean)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH asked AS MATERIALIZED (
    SELECT s.type, s.key, {schema}.skip_saga_step(s.id, $2::text, $5::jsonb) AS steps
    FROM {schema}.saga AS s
    WHERE s.id = $1
  )
  INSERT INTO {schema}.audit (operator, note, action, scope, key, reason)
  SELECT $3, $4, 'skip', a.type, a.key, t.step
  FROM asked AS a
  CROSS JOIN LATERAL unnest(a.steps) AS t (step)
  RETURNING NULL::text AS command, NULL::boolean AS is_discarded
$$;
COMMENT ON FUNCTION {schema}.skip_saga_step_as IS 'For operators: skip_saga_step(), recorded.';

CREATE FUNCTION {schema}.abandon_saga_as(saga_id bigint, why text, by text, note text) RETURNS TABLE (command text, is_discarded boolean)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH abandoned AS MATERIALIZED (
    SELECT s.type, s.key, {schema}.abandon_saga(s.id, $2::text) AS is_done
    FROM {schema}.saga AS s
    WHERE s.id = $1
  )
  INSERT INTO {schema}.audit (operator, note, action, scope, key)
  SELECT $3, $4, 'abandon', a.type, a.key
  FROM abandoned AS a
  WHERE a.is_done
  RETURNING NULL::text AS command, NULL::boolean AS is_discarded
$$;
COMMENT ON FUNCTION {schema}.abandon_saga_as IS 'For operators: abandon_saga(), recorded. No row where it has finished.';
