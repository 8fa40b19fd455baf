-- What takes part in sagas: the barrier before actions and compensations, and the subject of a reply.
-- SQLSTATE of our own: OB004 also for the subject in Oncebox-Reply-To.

-- A row for each action of a saga in this service. saga/src/barrier.rs explains the states.
CREATE TABLE {schema}.barrier (
  barrier    text COLLATE "C" NOT NULL,
  tenant     text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  state      text NOT NULL,
  changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT barrier_pkey PRIMARY KEY (barrier, tenant, key),
  CONSTRAINT barrier_sizes CHECK (octet_length(barrier) BETWEEN 1 AND 255 AND octet_length(key) BETWEEN 1 AND 255
    AND octet_length(tenant) <= 255),
  CONSTRAINT barrier_state CHECK (state IN ('acting', 'acted', 'rejected', 'undoing', 'undone', 'refused'))
);
COMMENT ON TABLE {schema}.barrier IS 'How far each action of a saga came here, so that it and its compensation have the effect of one of them.';
CREATE INDEX barrier_changed_at ON {schema}.barrier (barrier, changed_at);

CREATE FUNCTION {schema}.enter_action(barrier text, tenant text, key text, is_leased boolean) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  entered text := CASE WHEN enter_action.is_leased THEN 'acting' ELSE 'acted' END;
  found_state text;
BEGIN
  FOR attempt IN 1 .. 3 LOOP
    -- Waits for an open transaction that has inserted the row.
    INSERT INTO {schema}.barrier AS b (barrier, tenant, key, state)
    VALUES (enter_action.barrier, enter_action.tenant, enter_action.key, entered)
    ON CONFLICT ON CONSTRAINT barrier_pkey DO NOTHING;
    IF FOUND THEN
      RETURN 'act';
    END IF;
    SELECT b.state INTO found_state
    FROM {schema}.barrier AS b
    WHERE b.barrier = enter_action.barrier AND b.tenant = enter_action.tenant AND b.key = enter_action.key
    FOR UPDATE;
    IF FOUND THEN
      -- A leased run that goes on, or another attempt at what had no effect.
      IF found_state IN ('acting', 'rejected') THEN
        UPDATE {schema}.barrier AS b
        SET state = entered, changed_at = clock_timestamp()
        WHERE b.barrier = enter_action.barrier AND b.tenant = enter_action.tenant AND b.key = enter_action.key;
        RETURN 'act';
      END IF;
      RETURN CASE WHEN found_state = 'acted' THEN 'acted' ELSE 'refused' END;
    END IF;
    -- Not found here means that it was rolled back or swept between the two statements.
  END LOOP;
  RAISE EXCEPTION 'the row of "%" at the barrier went three times while it was asked for', enter_action.key
    USING ERRCODE = '40001';
END $$;
COMMENT ON FUNCTION {schema}.enter_action IS 'Whether an action of a saga may have its effect in this transaction: act, acted (it had it before) or refused (its compensation came first).';

CREATE FUNCTION {schema}.end_action(barrier text, tenant text, key text, had_effect boolean) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE {schema}.barrier AS b
  SET state = CASE WHEN $4 THEN 'acted' ELSE 'rejected' END, changed_at = clock_timestamp()
  WHERE b.barrier = $1 AND b.tenant = $2 AND b.key = $3 AND b.state IN ('acting', 'acted')
  RETURNING b.state
$$;
COMMENT ON FUNCTION {schema}.end_action IS 'An action that was let through has ended, with or without an effect; NULL when none was.';

CREATE FUNCTION {schema}.enter_compensation(barrier text, tenant text, key text, is_leased boolean) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_state text;
  next_state text;
BEGIN
  FOR attempt IN 1 .. 3 LOOP
    -- The mark that refuses the action, should it come after all.
    INSERT INTO {schema}.barrier AS b (barrier, tenant, key, state)
    VALUES (enter_compensation.barrier, enter_compensation.tenant, enter_compensation.key, 'refused')
    ON CONFLICT ON CONSTRAINT barrier_pkey DO NOTHING;
    IF FOUND THEN
      RETURN 'nothing';
    END IF;
    SELECT b.state INTO found_state
    FROM {schema}.barrier AS b
    WHERE b.barrier = enter_compensation.barrier AND b.tenant = enter_compensation.tenant
      AND b.key = enter_compensation.key
    FOR UPDATE;
    IF FOUND THEN
      IF found_state = 'acting' THEN
        RETURN 'wait';
      END IF;
      next_state := CASE
        WHEN found_state IN ('acted', 'undoing') AND enter_compensation.is_leased THEN 'undoing'
        WHEN found_state IN ('acted', 'undoing') THEN 'undone'
        WHEN found_state = 'rejected' THEN 'refused'
        ELSE found_state
      END;
      IF next_state <> found_state THEN
        UPDATE {schema}.barrier AS b
        SET state = next_state, changed_at = clock_timestamp()
        WHERE b.barrier = enter_compensation.barrier AND b.tenant = enter_compensation.tenant
          AND b.key = enter_compensation.key;
      END IF;
      RETURN CASE WHEN found_state IN ('acted', 'undoing') THEN 'undo' ELSE 'nothing' END;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'the row of "%" at the barrier went three times while it was asked for', enter_compensation.key
    USING ERRCODE = '40001';
END $$;
COMMENT ON FUNCTION {schema}.enter_compensation IS 'Whether a compensation has something to undo in this transaction: undo, nothing (and the action will never act), or wait (a leased run of it is under way).';

CREATE FUNCTION {schema}.end_compensation(barrier text, tenant text, key text) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE {schema}.barrier AS b
  SET state = 'undone', changed_at = clock_timestamp()
  WHERE b.barrier = $1 AND b.tenant = $2 AND b.key = $3 AND b.state = 'undoing'
  RETURNING b.state
$$;
COMMENT ON FUNCTION {schema}.end_compensation IS 'A leased compensation has undone its action; NULL when none was under way.';

CREATE FUNCTION {schema}.sweep_barrier(barrier text, keep interval, most integer) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH old AS (
    SELECT b.barrier, b.tenant, b.key
    FROM {schema}.barrier AS b
    WHERE b.barrier = $1 AND b.changed_at < clock_timestamp() - $2 AND b.state NOT IN ('acting', 'undoing')
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
COMMENT ON FUNCTION {schema}.sweep_barrier IS 'Deletes rows of a barrier that have ended longer ago than this; 10000 at most. What is under way stays.';

-- As before, and a command may say where its answer goes: the one name of Oncebox that a producer sets.
CREATE OR REPLACE FUNCTION {schema}.check_headers(headers jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  header record;
BEGIN
  IF headers = '{}' THEN
    RETURN true;
  END IF;
  IF jsonb_typeof(headers) <> 'object' THEN
    RAISE EXCEPTION 'headers are a JSON %, not an object of strings', jsonb_typeof(headers) USING ERRCODE = 'OB004';
  END IF;
  IF octet_length(headers::text) > 16384 THEN
    RAISE EXCEPTION 'headers are % bytes long; the limit is 16384 bytes', octet_length(headers::text) USING ERRCODE = 'OB004';
  END IF;
  FOR header IN SELECT * FROM jsonb_each(headers) AS h (name, value) LOOP
    IF header.name COLLATE "C" !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' OR octet_length(header.name) > 128 THEN
      RAISE EXCEPTION 'header name "%" is not 1 to 128 characters of an HTTP token', left(header.name, 300) USING ERRCODE = 'OB004';
    END IF;
    IF header.name COLLATE "C" ~* '^(nats-|oncebox-|(x-)?idempotency-key$)' AND header.name <> 'Oncebox-Reply-To' THEN
      RAISE EXCEPTION 'header "%" is set by the relay or commands the broker', header.name USING ERRCODE = 'OB004';
    END IF;
    IF jsonb_typeof(header.value) <> 'string' OR header.value #>> '{}' COLLATE "C" ~ '[\x01-\x08\x0a-\x1f\x7f]' THEN
      RAISE EXCEPTION 'value of header "%" is not a string without control characters', header.name USING ERRCODE = 'OB004';
    END IF;
    IF header.name = 'Oncebox-Reply-To' THEN
      PERFORM {schema}.check_subject(header.value #>> '{}');
    END IF;
  END LOOP;
  RETURN true;
END $$;
