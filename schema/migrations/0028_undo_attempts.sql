-- A compensation is attempted again, too, and at most one of its attempts undoes. What one under a
-- lease has begun, another takes over only when it is known to have undone nothing; and what was let
-- through and undid nothing can be taken back.

DROP FUNCTION {schema}.enter_compensation(text, text, text, boolean);
CREATE FUNCTION {schema}.enter_compensation(
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
      SET state = next_state, attempt = enter_compensation.attempt, changed_at = clock_timestamp()
      WHERE b.barrier = enter_compensation.barrier AND b.tenant = enter_compensation.tenant
        AND b.key = enter_compensation.key
        AND (next_state <> stored.state OR next_state = 'undoing' AND b.attempt <> enter_compensation.attempt);
      RETURN CASE WHEN stored.state IN ('acted', 'undoing') THEN 'undo' ELSE 'nothing' END;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'the row of "%" at the barrier went three times while it was asked for', enter_compensation.key
    USING ERRCODE = '40001';
END $$;
COMMENT ON FUNCTION {schema}.enter_compensation IS 'Whether a compensation has something to undo in this transaction: undo, nothing (and the action will never act), or wait (a leased run of it, or of another attempt at undoing it, is under way or may have had its effect). scope: that of the inbox of a leased compensation, where the other attempt is looked up.';
COMMENT ON COLUMN {schema}.barrier.attempt IS 'The newest attempt that was let through, at the action or, from undoing on, at its compensation; an earlier attempt at the action that comes later is refused.';

DROP FUNCTION {schema}.end_compensation(text, text, text);
CREATE FUNCTION {schema}.end_compensation(barrier text, tenant text, key text, has_undone boolean DEFAULT true)
RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE {schema}.barrier AS b
  SET state = CASE WHEN $4 THEN 'undone' ELSE 'acted' END, changed_at = clock_timestamp()
  WHERE b.barrier = $1 AND b.tenant = $2 AND b.key = $3 AND (b.state = 'undoing' OR b.state = 'undone' AND NOT $4)
  RETURNING b.state
$$;
COMMENT ON FUNCTION {schema}.end_compensation IS 'A compensation that was let through has ended: a leased one has undone its action, or one of either kind has undone nothing, and the next attempt may; NULL when none was let through.';
