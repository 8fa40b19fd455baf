-- Sagas. An end belongs to the run that the barrier let through. A death has the scope that it comes
-- from, a saga that of its orchestrator. Skip helps in quarantine too, and abandon cancels what is
-- delayed.
-- SQLSTATE of our own: OB012, an end of a run that is not under way at the barrier.

ALTER TABLE {schema}.barrier ADD COLUMN xact xid8;
ALTER TABLE {schema}.barrier ALTER COLUMN xact SET DEFAULT pg_current_xact_id();
COMMENT ON COLUMN {schema}.barrier.xact IS 'The transaction that was let through last: only it may say that it had no effect, or has undone nothing, except under a lease.';

ALTER TABLE {schema}.saga_event ADD COLUMN scope text COLLATE "C";
COMMENT ON COLUMN {schema}.saga_event.scope IS 'Of a death: the scope of the inbox that gave the command up.';

COMMENT ON COLUMN {schema}.saga.began_with IS 'SHA-256 of the data that it began with, whatever the order of its elements: a start with the same business id and other data is refused.';
ALTER TABLE {schema}.saga ADD COLUMN scope text COLLATE "C";
COMMENT ON COLUMN {schema}.saga.scope IS 'The scope of the orchestrator that started it; those of other scopes leave it alone. NULL where an earlier version did.';

-- As before, and notes the transaction that it lets through.
CREATE OR REPLACE FUNCTION {schema}.enter_action(barrier text, tenant text, key text, is_leased boolean, attempt integer DEFAULT 1)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  entered text := CASE WHEN enter_action.is_leased THEN 'acting' ELSE 'acted' END;
  stored record;
BEGIN
  FOR try IN 1 .. 3 LOOP
    -- Waits for an open transaction that has inserted the row.
    INSERT INTO {schema}.barrier AS b (barrier, tenant, key, state, attempt)
    VALUES (enter_action.barrier, enter_action.tenant, enter_action.key, entered, enter_action.attempt)
    ON CONFLICT ON CONSTRAINT barrier_pkey DO NOTHING;
    IF FOUND THEN
      RETURN 'act';
    END IF;
    SELECT b.state, b.attempt INTO stored
    FROM {schema}.barrier AS b
    WHERE b.barrier = enter_action.barrier AND b.tenant = enter_action.tenant AND b.key = enter_action.key
    FOR UPDATE;
    IF FOUND THEN
      IF stored.state = 'acted' THEN
        RETURN 'acted';
      END IF;
      -- A leased run goes on, but another attempt does not step into it; what was rejected may be
      -- tried by the same attempt or a newer one.
      IF stored.state = 'acting' AND stored.attempt = enter_action.attempt
         OR stored.state = 'rejected' AND stored.attempt <= enter_action.attempt THEN
        UPDATE {schema}.barrier AS b
        SET state = entered, attempt = enter_action.attempt, xact = pg_current_xact_id(), changed_at = clock_timestamp()
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

-- As before, and notes the transaction that it lets through.
CREATE OR REPLACE FUNCTION {schema}.enter_compensation(
  barrier text, tenant text, key text, is_leased boolean, attempt integer DEFAULT 1, scope text DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stored record;
  next_state text;
  other text;
  ended text;
BEGIN
  FOR try IN 1 .. 3 LOOP
    -- The mark that refuses the action, should it come after all.
    INSERT INTO {schema}.barrier AS b (barrier, tenant, key, state)
    VALUES (enter_compensation.barrier, enter_compensation.tenant, enter_compensation.key, 'refused')
    ON CONFLICT ON CONSTRAINT barrier_pkey DO NOTHING;
    IF FOUND THEN
      RETURN 'nothing';
    END IF;
    SELECT b.state, b.attempt INTO stored
    FROM {schema}.barrier AS b
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
        FROM {schema}.inbox AS i
        WHERE i.scope = enter_compensation.scope AND i.tenant = enter_compensation.tenant AND i.key = other
        FOR UPDATE;
        -- The other is under way, or it may have undone: it remembers an effect. One that remembers
        -- its answer here, and has no end, is about to run again.
        IF enter_compensation.scope IS NULL OR ended = 'completed'
           OR EXISTS (
             SELECT FROM {schema}.inbox_claim AS c
             WHERE c.scope = enter_compensation.scope AND c.tenant = enter_compensation.tenant AND c.key = other
           )
           OR EXISTS (
             SELECT FROM {schema}.inbox_effect AS e
             WHERE e.scope = enter_compensation.scope AND e.tenant = enter_compensation.tenant AND e.key = other
               AND (ended IS NULL OR e.step <> 'barrier' AND e.state <> 'rejected')
           ) THEN
          RETURN 'wait';
        END IF;
        -- Should an operator have it run again, it asks again.
        DELETE FROM {schema}.inbox_effect AS e
        WHERE e.scope = enter_compensation.scope AND e.tenant = enter_compensation.tenant AND e.key = other
          AND e.step = 'barrier';
      END IF;
      next_state := CASE
        WHEN stored.state IN ('acted', 'undoing') AND enter_compensation.is_leased THEN 'undoing'
        WHEN stored.state IN ('acted', 'undoing') THEN 'undone'
        WHEN stored.state = 'rejected' THEN 'refused'
        ELSE stored.state
      END;
      UPDATE {schema}.barrier AS b
      SET state = next_state, attempt = enter_compensation.attempt, xact = pg_current_xact_id(),
          changed_at = clock_timestamp()
      WHERE b.barrier = enter_compensation.barrier AND b.tenant = enter_compensation.tenant
        AND b.key = enter_compensation.key
        AND (next_state <> stored.state OR next_state = 'undoing' AND b.attempt <> enter_compensation.attempt);
      RETURN CASE WHEN stored.state IN ('acted', 'undoing') THEN 'undo' ELSE 'nothing' END;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'the row of "%" at the barrier went three times while it was asked for', enter_compensation.key
    USING ERRCODE = '40001';
END $$;
-- What the two ends share: an end that fits no run is an error, so that its transaction is not committed.
CREATE FUNCTION {schema}.check_end(state text, barrier text, key text, attempt integer) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF check_end.state IS NULL THEN
    RAISE EXCEPTION 'barrier "%": no run of attempt % at "%" is under way', check_end.barrier, check_end.attempt, check_end.key
      USING ERRCODE = 'OB012', HINT = 'Ask the barrier before the effect, end only what it let through, and give the number of the same attempt.';
  END IF;
  RETURN check_end.state;
END $$;

DROP FUNCTION {schema}.end_action(text, text, text, boolean);
CREATE FUNCTION {schema}.end_action(barrier text, tenant text, key text, had_effect boolean, attempt integer DEFAULT 1)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ended text;
BEGIN
  -- To say again that it had its effect changes nothing.
  UPDATE {schema}.barrier AS b
  SET state = CASE WHEN end_action.had_effect THEN 'acted' ELSE 'rejected' END, changed_at = clock_timestamp()
  WHERE b.barrier = end_action.barrier AND b.tenant = end_action.tenant AND b.key = end_action.key
    AND b.attempt = end_action.attempt
    AND (b.state = 'acting' OR b.state = 'acted' AND (end_action.had_effect OR b.xact = pg_current_xact_id()))
  RETURNING b.state INTO ended;
  RETURN {schema}.check_end(ended, end_action.barrier, end_action.key, end_action.attempt);
END $$;
COMMENT ON FUNCTION {schema}.end_action IS 'An attempt at an action that was let through has ended, with or without an effect: under a lease in a later transaction, else in the same one. Error OB012 when no such run is under way.';

DROP FUNCTION {schema}.end_compensation(text, text, text, boolean);
CREATE FUNCTION {schema}.end_compensation(
  barrier text, tenant text, key text, has_undone boolean DEFAULT true, attempt integer DEFAULT 1
)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ended text;
BEGIN
  UPDATE {schema}.barrier AS b
  SET state = CASE WHEN end_compensation.has_undone THEN 'undone' ELSE 'acted' END, changed_at = clock_timestamp()
  WHERE b.barrier = end_compensation.barrier AND b.tenant = end_compensation.tenant AND b.key = end_compensation.key
    AND b.attempt = end_compensation.attempt
    AND (b.state = 'undoing' OR b.state = 'undone' AND NOT end_compensation.has_undone AND b.xact = pg_current_xact_id())
  RETURNING b.state INTO ended;
  RETURN {schema}.check_end(ended, end_compensation.barrier, end_compensation.key, end_compensation.attempt);
END $$;
COMMENT ON FUNCTION {schema}.end_compensation IS 'An attempt at a compensation that was let through has ended: a leased one has undone its action, or one of either kind has undone nothing, and the next attempt may; the latter in the same transaction unless it is leased. Error OB012 when no such run is under way.';

-- Of a saga in quarantine the step is skipped that is under way: its answer may be what cannot be read,
-- so what is kept of it goes.
CREATE OR REPLACE FUNCTION {schema}.skip_saga_step(saga_id bigint, step text) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  instance record;
  number integer;
BEGIN
  SELECT s.key, s.state, s.direction = 'backward' AS is_undo INTO instance
  FROM {schema}.saga AS s
  WHERE s.id = skip_saga_step.saga_id
  FOR UPDATE;
  IF instance.state IS DISTINCT FROM 'quarantined' THEN
    RETURN {schema}.ask_saga(skip_saga_step.saga_id, skip_saga_step.step, 'skip');
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
  INSERT INTO {schema}.saga_event (key, is_orphan, kind, step, attempt, is_undo)
  VALUES (instance.key, false, 'skip', skip_saga_step.step, number, instance.is_undo);
  UPDATE {schema}.saga AS s
  SET state = CASE WHEN instance.is_undo THEN 'compensating' ELSE 'running' END, reason = NULL,
      due_at = clock_timestamp(), changed_at = clock_timestamp(), revision = s.revision + 1
  WHERE s.id = skip_saga_step.saga_id;
  RETURN ARRAY[skip_saga_step.step];
END $$;
COMMENT ON FUNCTION {schema}.skip_saga_step IS 'Go on as if a step that waits for an operator were done, or its compensation; somebody has done it by hand. Of a saga in quarantine also one that is under way: its answers are deleted. Returns the step. Error OB009 when it does not wait.';

-- As before, and cancels the attempts that are delayed.
CREATE OR REPLACE FUNCTION {schema}.abandon_saga(saga_id bigint, why text) RETURNS boolean
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
COMMENT ON FUNCTION {schema}.abandon_saga IS 'Give a saga up as it stands: attempts that are delayed are cancelled, nothing more is sent, nothing is undone, answers change nothing. What is in the log already is delivered. False when it has finished already, or there is none.';
