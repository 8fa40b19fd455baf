-- Canary: the dead letters, or dead messages, that an operator has selected are retried one first,
-- then 10, then 100, then the rest. It stops by itself when one of them fails again.
--
-- | a retried row is | when |
-- |---|---|
-- | good | the inbox has handled its key, or a stream has stored the message |
-- | failed | it is dead again, or the message was tried in vain: the canary stops |
-- | without a verdict | neither within its time: the canary stops |
-- | skipped | an operator retried or discarded it before the canary did, or an edit came in its place |
--
-- Relays take the steps, a row in each transaction. The transaction locks the canary first, so no
-- two relays take the same step. The retry, its row in the audit and the note in canary_row are one
-- commit: a relay that dies before it leaves all three undone. It may have published the letter by
-- then. That copy meets a key that is still dead, and is answered so; the next relay sends another.

CREATE TABLE {schema}.canary (
  id            bigint GENERATED ALWAYS AS IDENTITY,
  kind          text NOT NULL,
  state         text NOT NULL DEFAULT 'running',
  step          integer NOT NULL DEFAULT 1,
  room          integer NOT NULL DEFAULT 1,
  watch_seconds double precision NOT NULL,
  selected      integer NOT NULL DEFAULT 0,
  watched       integer NOT NULL DEFAULT 0,
  good          integer NOT NULL DEFAULT 0,
  failed        integer NOT NULL DEFAULT 0,
  skipped       integer NOT NULL DEFAULT 0,
  reason        text,
  fault         text,
  fault_since   timestamptz,
  database_user text NOT NULL DEFAULT session_user,
  operator      text,
  note          text,
  command       text COLLATE "C" NOT NULL,
  began_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at      timestamptz,
  CONSTRAINT canary_pkey PRIMARY KEY (id),
  CONSTRAINT canary_kind CHECK (kind IN ('letter', 'message')),
  CONSTRAINT canary_state CHECK (state IN ('running', 'failed', 'stopped', 'done')),
  CONSTRAINT canary_ended CHECK ((ended_at IS NULL) = (state = 'running')),
  CONSTRAINT canary_watch CHECK (watch_seconds BETWEEN 1 AND 86400)
);
COMMENT ON TABLE {schema}.canary IS 'Retries in steps of 1, 10, 100 and the rest. One that has ended is kept for a week, and of several the newest 100.';
COMMENT ON COLUMN {schema}.canary.state IS 'failed: it stopped by itself, and reason says at which row; stopped: an operator stopped it.';
COMMENT ON COLUMN {schema}.canary.room IS 'How many rows this step may still retry; the rest has steps of 100, and 1,000 rows without a verdict.';
COMMENT ON COLUMN {schema}.canary.watched IS 'Rows that were retried and have no verdict yet.';
COMMENT ON COLUMN {schema}.canary.fault IS 'Why the next row could not be retried when it was last tried.';

CREATE TABLE {schema}.canary_row (
  canary      bigint NOT NULL REFERENCES {schema}.canary ON DELETE CASCADE,
  place       integer NOT NULL,
  lane        smallint,
  id          bigint NOT NULL,
  died_at     timestamptz NOT NULL,
  scope       text COLLATE "C",
  tenant      text,
  key         text COLLATE "C" NOT NULL,
  state       text COLLATE "C" NOT NULL DEFAULT 'waiting',
  retried_at  timestamptz,
  last_letter bigint,
  settled_at  timestamptz,
  CONSTRAINT canary_row_pkey PRIMARY KEY (canary, place),
  CONSTRAINT canary_row_state CHECK (state IN ('waiting', 'watched', 'good', 'failed', 'skipped'))
);
COMMENT ON TABLE {schema}.canary_row IS 'The rows of a canary, as they were when it began.';
COMMENT ON COLUMN {schema}.canary_row.died_at IS 'A row that has died again since is another one.';
COMMENT ON COLUMN {schema}.canary_row.last_letter IS 'The last id of a dead letter when this one was retried.';
COMMENT ON COLUMN {schema}.canary_row.settled_at IS 'Of a key that was settled with another payload before: when.';
CREATE INDEX canary_row_next ON {schema}.canary_row (canary, state, place);

CREATE FUNCTION {schema}.canary_row_name(r {schema}.canary_row) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('%s %s, key %s', CASE WHEN r.lane IS NULL THEN 'dead letter' ELSE 'message' END, r.id, r.key)
$$;

-- A letter of a line dies again under its own id, every other one under a new id.
CREATE FUNCTION {schema}.canary_verdict(r {schema}.canary_row, OUT verdict text, OUT why text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF r.lane IS NOT NULL THEN
    SELECT CASE WHEN p.dead_at IS NOT NULL OR p.attempts > 0 THEN 'failed' ELSE 'watched' END, p.error
    INTO verdict, why
    FROM {schema}.parked AS p
    WHERE p.lane = r.lane AND p.id = r.id;
    verdict := coalesce(verdict, CASE
      WHEN EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = r.lane AND d.id = r.id)
        OR EXISTS (SELECT FROM {schema}.replay AS y WHERE y.lane = r.lane AND y.id = r.id AND y.cancelled = y.number)
        THEN 'skipped'
      ELSE 'good'
    END);
    RETURN;
  END IF;
  SELECT 'failed', d.reason
  INTO verdict, why
  FROM {schema}.dead_letter AS d
  WHERE d.key = r.key AND d.scope = r.scope AND d.tenant = r.tenant AND (d.id = r.id OR d.id > r.last_letter)
  ORDER BY d.id
  LIMIT 1;
  IF verdict IS NULL THEN
    SELECT CASE WHEN i.status <> 'dead' THEN 'good' WHEN i.fingerprint = '' THEN 'skipped' ELSE 'failed' END,
           'its new dead letter is gone already'
    INTO verdict, why
    FROM {schema}.inbox AS i
    WHERE i.scope = r.scope AND i.tenant = r.tenant AND i.key = r.key
      AND (i.created_at IS DISTINCT FROM r.settled_at OR i.status = 'dead' AND i.fingerprint = '');
  END IF;
  verdict := coalesce(verdict, 'watched');
END $$;

-- Notes the verdicts on all rows that wait for one, 1,000 at most.
CREATE FUNCTION {schema}.judge_canary(INOUT c {schema}.canary)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r {schema}.canary_row;
  verdict text;
  why text;
  failed text;
  late text;
BEGIN
  FOR r IN SELECT w.* FROM {schema}.canary_row AS w WHERE w.canary = c.id AND w.state = 'watched' ORDER BY w.place LOOP
    SELECT v.verdict, v.why INTO verdict, why FROM {schema}.canary_verdict(r) AS v;
    IF verdict = 'watched' THEN
      IF r.retried_at < clock_timestamp() - make_interval(secs => c.watch_seconds) THEN
        late := coalesce(late, format('no verdict within %s s: %s', c.watch_seconds, {schema}.canary_row_name(r)));
      END IF;
      CONTINUE;
    END IF;
    UPDATE {schema}.canary_row AS w SET state = verdict WHERE w.canary = c.id AND w.place = r.place;
    c.watched := c.watched - 1;
    CASE verdict
      WHEN 'good' THEN c.good := c.good + 1;
      WHEN 'skipped' THEN c.skipped := c.skipped + 1;
      ELSE
        c.failed := c.failed + 1;
        failed := coalesce(failed, format('failed again: %s: %s', {schema}.canary_row_name(r), why));
    END CASE;
  END LOOP;
  IF failed IS NOT NULL OR late IS NOT NULL THEN
    c.state := 'failed';
    c.reason := coalesce(failed, late);
  END IF;
END $$;

-- With the columns of retry_letter() for a letter that is to be published.
CREATE FUNCTION {schema}.retry_canary_row(
  c {schema}.canary, r {schema}.canary_row,
  OUT is_retried boolean, OUT outbox text, OUT key text, OUT subject text, OUT headers text, OUT payload bytea,
  OUT number bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('oncebox.command', c.command, true);
  IF c.kind = 'message' THEN
    PERFORM FROM {schema}.lane AS l WHERE l.lane = r.lane FOR UPDATE;
    PERFORM FROM {schema}.parked AS p WHERE p.lane = r.lane AND p.id = r.id AND p.dead_at = r.died_at;
    is_retried := FOUND;
    IF is_retried THEN
      PERFORM {schema}.retry_dead(r.lane, ARRAY[r.id], c.operator, c.note);
    END IF;
  ELSE
    PERFORM FROM {schema}.dead_letter AS d WHERE d.id = r.id AND d.created_at = r.died_at FOR UPDATE;
    -- No inbox would handle it any more: see 0027_edit.sql.
    is_retried := FOUND AND NOT EXISTS (
      SELECT
      FROM {schema}.inbox AS i
      WHERE i.scope = r.scope AND i.tenant = r.tenant AND i.key = r.key AND i.status = 'dead' AND i.fingerprint = ''
    );
    IF is_retried AND NOT {schema}.retry_in_line(r.id, c.operator, c.note) THEN
      SELECT l.outbox, l.key, l.subject, l.headers, l.payload, l.number
      INTO outbox, key, subject, headers, payload, number
      FROM {schema}.retry_letter(r.id, c.operator, c.note) AS l;
    END IF;
  END IF;
  IF is_retried THEN
    -- The relay is only the hand of the operator.
    UPDATE {schema}.audit AS a SET database_user = c.database_user WHERE a.id = currval('{schema}.audit_id_seq');
  END IF;
  UPDATE {schema}.canary_row AS w
  SET
    state = CASE WHEN is_retried THEN 'watched' ELSE 'skipped' END,
    retried_at = CASE WHEN is_retried THEN clock_timestamp() END,
    last_letter = (SELECT q.last_value FROM {schema}.dead_letter_id_seq AS q),
    settled_at = (SELECT i.created_at FROM {schema}.inbox AS i WHERE i.scope = r.scope AND i.tenant = r.tenant AND i.key = r.key)
  WHERE w.canary = c.id AND w.place = r.place;
END $$;

-- Verdicts are looked at before each tenth row, and where no row is left to retry.
CREATE FUNCTION {schema}.take_canary_step(
  canary bigint,
  OUT moved boolean, OUT letter bigint, OUT outbox text, OUT key text, OUT subject text, OUT headers text, OUT payload bytea,
  OUT number bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  c {schema}.canary;
  r {schema}.canary_row;
  is_retried boolean;
BEGIN
  moved := false;
  SELECT k.* INTO c FROM {schema}.canary AS k WHERE k.id = take_canary_step.canary AND k.state = 'running' FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  SELECT w.* INTO r FROM {schema}.canary_row AS w WHERE w.canary = c.id AND w.state = 'waiting' ORDER BY w.place LIMIT 1;
  IF c.room % 10 = 0 OR r.id IS NULL THEN
    c := {schema}.judge_canary(c);
  END IF;
  IF c.state = 'running' AND c.fault_since < clock_timestamp() - make_interval(secs => c.watch_seconds) THEN
    c.state := 'failed';
    c.reason := format('it could not be retried: %s: %s', {schema}.canary_row_name(r), c.fault);
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
    FROM {schema}.retry_canary_row(c, r) AS t;
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
  UPDATE {schema}.canary AS k
  SET
    (state, step, room, watched, good, failed, skipped, reason, fault, fault_since) =
      (c.state, c.step, c.room, c.watched, c.good, c.failed, c.skipped, c.reason, c.fault, c.fault_since),
    ended_at = CASE WHEN c.state <> 'running' THEN clock_timestamp() END
  WHERE k.id = c.id
    AND (k.state, k.step, k.room, k.watched, k.good, k.failed, k.skipped, k.fault_since)
      IS DISTINCT FROM (c.state, c.step, c.room, c.watched, c.good, c.failed, c.skipped, c.fault_since);
END $$;
COMMENT ON FUNCTION {schema}.take_canary_step IS 'For relays: judges the retried rows of a canary, and retries its next row. With a letter, publish it and then commit. moved: there may be more to do at once.';

-- In a transaction of its own: that of the step is rolled back.
CREATE FUNCTION {schema}.note_canary_fault(canary bigint, fault text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH known AS (
    SELECT k.id, coalesce(k.fault_since, clock_timestamp()) AS since, k.fault_since IS NULL AS is_new
    FROM {schema}.canary AS k
    WHERE k.id = $1 AND k.state = 'running'
    FOR UPDATE
  ),
  noted AS (
    UPDATE {schema}.canary AS k
    SET fault = left($2, 1000), fault_since = o.since
    FROM known AS o
    WHERE k.id = o.id
  )
  SELECT o.is_new FROM known AS o
$$;
COMMENT ON FUNCTION {schema}.note_canary_fault IS 'For relays: why the next row of a canary could not be retried. After the time of a verdict the canary stops for it. Whether the fault is new.';

CREATE FUNCTION {schema}.running_canaries() RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM {schema}.canary AS k
  WHERE k.id = (
    SELECT o.id
    FROM {schema}.canary AS o
    WHERE o.ended_at < clock_timestamp() - interval '7 days'
      OR o.ended_at IS NOT NULL AND o.id <= (SELECT n.id FROM {schema}.canary AS n ORDER BY n.id DESC OFFSET 100 LIMIT 1)
    ORDER BY o.id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
  );
  RETURN QUERY SELECT k.id FROM {schema}.canary AS k WHERE k.state = 'running' ORDER BY k.id;
END $$;
COMMENT ON FUNCTION {schema}.running_canaries IS 'For relays: the canaries that go on; forgets an old one that has ended.';

CREATE FUNCTION {schema}.begin_canary(
  kind text, lanes smallint[], ids bigint[], watch_seconds double precision, by text, note text
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
  ELSIF (SELECT count(*) FROM {schema}.canary AS k WHERE k.state = 'running') >= 8 THEN
    RAISE EXCEPTION 'eight canaries are running' USING ERRCODE = 'OB011', HINT = 'Wait for one, or stop one: oncebox canary list';
  END IF;
  SELECT d.id INTO keyless
  FROM {schema}.dead_letter AS d
  WHERE begin_canary.kind = 'letter' AND d.id = ANY (begin_canary.ids) AND d.key IS NULL
  LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'dead letter % has no key, so its inbox shows no verdict on it', keyless
      USING ERRCODE = 'OB011', HINT = 'Leave it out of the selection, or retry without a canary.';
  END IF;
  INSERT INTO {schema}.canary AS k (kind, watch_seconds, operator, note, command)
  VALUES (begin_canary.kind, begin_canary.watch_seconds, begin_canary.by, begin_canary.note,
          coalesce(nullif(current_setting('oncebox.command', true), ''), 'transaction ' || pg_current_xact_id()))
  RETURNING k.id INTO begun;
  IF begin_canary.kind = 'letter' THEN
    INSERT INTO {schema}.canary_row (canary, place, id, died_at, scope, tenant, key)
    SELECT begun, row_number() OVER (ORDER BY d.id), d.id, d.created_at, d.scope, d.tenant, d.key
    FROM {schema}.dead_letter AS d
    WHERE d.id = ANY (begin_canary.ids);
  ELSE
    INSERT INTO {schema}.canary_row (canary, place, lane, id, died_at, key)
    SELECT begun, row_number() OVER (ORDER BY p.id), p.lane, p.id, p.dead_at, p.key
    FROM unnest(begin_canary.lanes, begin_canary.ids) AS s (lane, id)
    JOIN {schema}.parked AS p ON p.lane = s.lane AND p.id = s.id
    WHERE p.dead_at IS NOT NULL;
  END IF;
  GET DIAGNOSTICS taken = ROW_COUNT;
  IF taken = 0 THEN
    RAISE EXCEPTION 'none of these rows is dead any more; nothing was begun' USING ERRCODE = 'OB011';
  END IF;
  UPDATE {schema}.canary AS k SET selected = taken WHERE k.id = begun;
  INSERT INTO {schema}.audit (operator, note, action, messages, reason)
  VALUES (begin_canary.by, begin_canary.note, 'begin-canary', taken, format('canary %s', begun));
  RETURN begun;
END $$;
COMMENT ON FUNCTION {schema}.begin_canary IS 'For operators: has these dead letters (kind letter), or dead messages of these lanes (kind message), retried in steps by the relays. watch_seconds: how long a retried row may be without a verdict. Returns the id of the canary.';

CREATE FUNCTION {schema}.stop_canary(canary bigint, by text, note text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rest integer;
BEGIN
  UPDATE {schema}.canary AS k
  SET state = 'stopped', reason = format('%s stopped it', coalesce(stop_canary.by, session_user)), ended_at = clock_timestamp()
  WHERE k.id = stop_canary.canary AND k.state IN ('running', 'failed')
  RETURNING k.selected - k.good - k.failed - k.skipped INTO rest;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO {schema}.audit (operator, note, action, messages, reason)
  VALUES (stop_canary.by, stop_canary.note, 'stop-canary', greatest(rest, 1), format('canary %s', stop_canary.canary));
  RETURN true;
END $$;
COMMENT ON FUNCTION {schema}.stop_canary IS 'For operators: stops a canary; one that stopped by itself is in no status any more. False when it is neither.';

-- It begins with one row again. Rows without a verdict have their whole time again.
CREATE FUNCTION {schema}.continue_canary(canary bigint, by text, note text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rest integer;
BEGIN
  UPDATE {schema}.canary AS k
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
  UPDATE {schema}.canary_row AS w
  SET retried_at = clock_timestamp()
  WHERE w.canary = continue_canary.canary AND w.state = 'watched';
  INSERT INTO {schema}.audit (operator, note, action, messages, reason)
  VALUES (continue_canary.by, continue_canary.note, 'continue-canary', rest, format('canary %s', continue_canary.canary));
  RETURN true;
END $$;
COMMENT ON FUNCTION {schema}.continue_canary IS 'For operators: goes on with the rest of a canary that has stopped, one row first, under the name of this operator. False when it has not stopped, or nothing is left.';
