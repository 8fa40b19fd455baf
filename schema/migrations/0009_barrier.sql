-- The barrier of a saga's participant: an action and its compensation leave the effect of one of
-- them, in any order and number. saga/src/barrier.rs explains the states.

-- A row for each action of a saga in this service; attempts at one action share it.
CREATE TABLE {schema}.barrier (
  barrier    text COLLATE "C" NOT NULL,
  tenant     text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  state      text NOT NULL,
  changed_at timestamptz NOT NULL DEFAULT statement_timestamp(),
  attempt    integer NOT NULL DEFAULT 1,
  xact       xid8 NOT NULL DEFAULT pg_current_xact_id(),
  CONSTRAINT barrier_pkey PRIMARY KEY (barrier, tenant, key),
  CONSTRAINT barrier_sizes CHECK (octet_length(barrier) BETWEEN 1 AND 255 AND octet_length(key) BETWEEN 1 AND 255
    AND octet_length(tenant) <= 255),
  CONSTRAINT barrier_state CHECK (state IN ('acting', 'acted', 'rejected', 'undoing', 'undone', 'refused'))
);
COMMENT ON TABLE {schema}.barrier IS 'How far each action of a saga came here, so that it and its compensation have the effect of one of them.';
COMMENT ON COLUMN {schema}.barrier.attempt IS 'The newest attempt that was let through, at the action or, from undoing on, at its compensation; an earlier attempt at the action that comes later is refused.';
COMMENT ON COLUMN {schema}.barrier.xact IS 'The transaction that was let through last: only it may say that it had no effect, or has undone nothing, except under a lease.';
CREATE INDEX barrier_changed_at ON {schema}.barrier (barrier, changed_at);

-- A call that its driver commits by itself would count an effect as done that belongs to another
-- transaction, or to none. A caller may bring a transaction of his own, in which it is too late for
-- the mark that claim() asks for. So the commit proves it: statement_timestamp() is the time of the
-- newest command of the client. It is still that of the call if the call was the whole transaction,
-- in the simple and the extended protocol, and COMMIT is a command of its own. Neither now() nor
-- the text of a query can tell: Parse begins a transaction before Execute, and texts may be
-- anything. A mark is proof as well, for a text of several statements, which is one command.
CREATE FUNCTION {schema}.refuse_lone_entry() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.changed_at = statement_timestamp()
     AND current_setting('transaction_deferrable') = current_setting('default_transaction_deferrable') THEN
    RAISE EXCEPTION 'the barrier is asked in the transaction of the effect, and the call for key "%" was a transaction of its own', NEW.key
      USING ERRCODE = 'OB010', HINT = 'BEGIN, enter_action() or enter_compensation(), the writes of the handler, COMMIT, each sent by itself; or BEGIN DEFERRABLE first if one text holds them all. Where a driver commits each statement by itself, the action would count as done without its effect.';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER barrier_entry AFTER INSERT OR UPDATE OF xact ON {schema}.barrier
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.state IN ('acted', 'undone'))
EXECUTE FUNCTION {schema}.refuse_lone_entry();

-- An argument that is missing is an error here: a flag that is NULL would count as false.
CREATE FUNCTION {schema}.check_barrier(barrier text, tenant text, key text, flag boolean, attempt integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF num_nulls(barrier, tenant, key, flag, attempt) > 0 THEN
    RAISE EXCEPTION '% of a call at the barrier is null', CASE WHEN barrier IS NULL THEN 'the barrier' WHEN tenant IS NULL
      THEN 'the tenant' WHEN key IS NULL THEN 'the key' WHEN attempt IS NULL THEN 'the attempt' ELSE 'the flag' END
      USING ERRCODE = 'OB011', HINT = 'Leave out the attempt if the message has no header Saga-Attempt; the tenant is '''' where there is one.';
  END IF;
  IF octet_length(barrier) NOT BETWEEN 1 AND 255 OR octet_length(key) NOT BETWEEN 1 AND 255 OR octet_length(tenant) > 255 THEN
    RAISE EXCEPTION 'barrier "%", tenant "%" and key "%" are not 1 to 255 bytes each', left(barrier, 300), left(tenant, 300), left(key, 300)
      USING ERRCODE = 'OB011', HINT = 'Only the tenant may be empty. The key is that of the action, without ":undo" and without ":#" and its attempt.';
  END IF;
END $$;

-- At most one attempt at an action has its effect. The transaction that is let through is noted.
CREATE FUNCTION {schema}.enter_action(barrier text, tenant text, key text, is_leased boolean, attempt integer DEFAULT 1)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  entered text := CASE WHEN enter_action.is_leased THEN 'acting' ELSE 'acted' END;
  stored record;
BEGIN
  PERFORM {schema}.check_barrier(enter_action.barrier, enter_action.tenant, enter_action.key, enter_action.is_leased, enter_action.attempt);
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
      -- A leased run goes on, but another attempt does not step into it; a rejected one may be
      -- tried again by the same attempt or a newer one.
      IF stored.state = 'acting' AND stored.attempt = enter_action.attempt
         OR stored.state = 'rejected' AND stored.attempt <= enter_action.attempt THEN
        UPDATE {schema}.barrier AS b
        SET state = entered, attempt = enter_action.attempt, xact = pg_current_xact_id(), changed_at = statement_timestamp()
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
COMMENT ON FUNCTION {schema}.enter_action IS 'Whether an action of a saga may have its effect in this transaction: act, acted (it had it before) or refused (its compensation came first, or another attempt at it is newer or under way). Error OB010 when it is committed by itself, unless it is leased.';

-- The two ends share this: an end that fits no run is an error, so that its transaction is not
-- committed.
CREATE FUNCTION {schema}.check_end(state text, barrier text, key text, attempt integer) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF check_end.state IS NULL THEN
    RAISE EXCEPTION 'barrier "%": no run of attempt % at "%" is under way', check_end.barrier, check_end.attempt, check_end.key
      USING ERRCODE = 'OB012', HINT = 'Ask the barrier before the effect, end only what it let through, and give the number of the same attempt.';
  END IF;
  RETURN check_end.state;
END $$;

-- The action had its effect, or was rejected; in that case a newer attempt may act.
CREATE FUNCTION {schema}.end_action(barrier text, tenant text, key text, had_effect boolean, attempt integer DEFAULT 1)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ended text;
BEGIN
  PERFORM {schema}.check_barrier(end_action.barrier, end_action.tenant, end_action.key, end_action.had_effect, end_action.attempt);
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

-- At most one attempt at a compensation undoes. An attempt under a lease is taken over only when it
-- is known to have undone nothing.
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
  PERFORM {schema}.check_barrier(enter_compensation.barrier, enter_compensation.tenant, enter_compensation.key, enter_compensation.is_leased, enter_compensation.attempt);
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
          changed_at = statement_timestamp()
      WHERE b.barrier = enter_compensation.barrier AND b.tenant = enter_compensation.tenant
        AND b.key = enter_compensation.key
        AND (next_state <> stored.state OR next_state = 'undoing' AND b.attempt <> enter_compensation.attempt);
      RETURN CASE WHEN stored.state IN ('acted', 'undoing') THEN 'undo' ELSE 'nothing' END;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'the row of "%" at the barrier went three times while it was asked for', enter_compensation.key
    USING ERRCODE = '40001';
END $$;
COMMENT ON FUNCTION {schema}.enter_compensation IS 'Whether a compensation has something to undo in this transaction: undo, nothing (and the action will never act), or wait (a leased run of it, or of another attempt at undoing it, is under way or may have had its effect). scope: that of the inbox of a leased compensation, where the other attempt is looked up. Error OB010 when the action to undo is committed by itself, unless it is leased.';

-- The action is undone, or nothing was; in that case the next attempt may undo it.
CREATE FUNCTION {schema}.end_compensation(
  barrier text, tenant text, key text, has_undone boolean DEFAULT true, attempt integer DEFAULT 1
)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ended text;
BEGIN
  PERFORM {schema}.check_barrier(end_compensation.barrier, end_compensation.tenant, end_compensation.key, end_compensation.has_undone, end_compensation.attempt);
  UPDATE {schema}.barrier AS b
  SET state = CASE WHEN end_compensation.has_undone THEN 'undone' ELSE 'acted' END, changed_at = clock_timestamp()
  WHERE b.barrier = end_compensation.barrier AND b.tenant = end_compensation.tenant AND b.key = end_compensation.key
    AND b.attempt = end_compensation.attempt
    AND (b.state = 'undoing' OR b.state = 'undone' AND NOT end_compensation.has_undone AND b.xact = pg_current_xact_id())
  RETURNING b.state INTO ended;
  RETURN {schema}.check_end(ended, end_compensation.barrier, end_compensation.key, end_compensation.attempt);
END $$;
COMMENT ON FUNCTION {schema}.end_compensation IS 'An attempt at a compensation that was let through has ended: a leased one has undone its action, or one of either kind has undone nothing, and the next attempt may; the latter in the same transaction unless it is leased. Error OB012 when no such run is under way.';

-- Rows of open actions stay, however old they are.
CREATE FUNCTION {schema}.sweep_barrier(barrier text, keep interval, most integer) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH old AS (
    SELECT b.barrier, b.tenant, b.key
    FROM {schema}.barrier AS b
    WHERE b.barrier = $1 AND b.changed_at < clock_timestamp() - greatest(least($2, make_interval(secs => {schema}.retention_max())), interval '0') AND b.state NOT IN ('acting', 'undoing')
    ORDER BY b.changed_at
    LIMIT least($3, 10000)
    FOR UPDATE SKIP LOCKED
  ),
  deleted AS (
    DELETE FROM {schema}.barrier AS b
    USING old AS o
    WHERE b.barrier = o.barrier AND b.tenant = o.tenant AND b.key = o.key
    RETURNING b.key
  )
  SELECT count(*) FROM deleted
$$;
COMMENT ON FUNCTION {schema}.sweep_barrier IS 'Deletes rows of a barrier that have ended longer ago than this; 10000 at most. Rows under way stay.';
