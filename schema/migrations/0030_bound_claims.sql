-- Claims that stay bound to their transaction, and retentions that can be subtracted from a date.

-- The longest retention, in seconds: 100 years, as in oncebox-claims. What lies further back than
-- dates reach makes every look at the scope's keys fail, and the sweep of all scopes.
CREATE FUNCTION {schema}.retention_max() RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 100 * 366 * 86400::double precision;

-- Not a number counts as longer than any retention.
UPDATE {schema}.inbox_scope
SET retention_seconds = least(retention_seconds, {schema}.retention_max()),
    dead_letter_seconds = least(dead_letter_seconds, {schema}.retention_max())
WHERE retention_seconds > {schema}.retention_max() OR dead_letter_seconds > {schema}.retention_max();

ALTER TABLE {schema}.inbox_scope
  DROP CONSTRAINT inbox_scope_retention,
  DROP CONSTRAINT inbox_scope_dead_letters,
  ADD CONSTRAINT inbox_scope_retention CHECK (retention_seconds > 0 AND retention_seconds <= 3162240000),
  ADD CONSTRAINT inbox_scope_dead_letters CHECK (dead_letter_seconds > 0 AND dead_letter_seconds <= 3162240000);

CREATE OR REPLACE FUNCTION {schema}.register_scope(
  scope text, retention interval DEFAULT NULL, dead_letter_retention interval DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  keys_seconds double precision := extract(epoch FROM register_scope.retention);
  letters_seconds double precision := extract(epoch FROM coalesce(register_scope.dead_letter_retention, interval '90 days'));
BEGIN
  PERFORM {schema}.check_inbox_names(register_scope.scope, '');
  IF keys_seconds NOT BETWEEN 1 AND {schema}.retention_max() OR letters_seconds NOT BETWEEN 1 AND {schema}.retention_max()
     OR register_scope.dead_letter_retention IS NOT NULL AND (keys_seconds IS NULL OR letters_seconds < keys_seconds) THEN
    RAISE EXCEPTION 'retention % and dead_letter_retention % of scope "%" do not fit', register_scope.retention,
      register_scope.dead_letter_retention, register_scope.scope
      USING ERRCODE = 'OB011', HINT = 'Both are 1 second to 100 years. Dead letters are kept as long as keys or longer; keys are kept for ever unless it is said otherwise.';
  END IF;
  INSERT INTO {schema}.inbox_scope AS s (scope, retention_seconds, dead_letter_seconds, kind, mode)
  VALUES (register_scope.scope, keys_seconds,
          CASE WHEN keys_seconds IS NOT NULL THEN greatest(letters_seconds, keys_seconds) END, 'consumer', 'transaction')
  ON CONFLICT ON CONSTRAINT inbox_scope_pkey DO UPDATE
  SET retention_seconds = excluded.retention_seconds,
      dead_letter_seconds = excluded.dead_letter_seconds,
      kind = excluded.kind,
      mode = excluded.mode,
      registered_at = CASE
        WHEN (s.retention_seconds, s.dead_letter_seconds, s.kind)
          IS DISTINCT FROM (excluded.retention_seconds, excluded.dead_letter_seconds, excluded.kind)
        THEN excluded.registered_at
        ELSE s.registered_at
      END
  WHERE s.mode IS NULL OR s.mode = excluded.mode;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'scope "%" claims its keys under a lease', register_scope.scope
      USING ERRCODE = 'OB010', HINT = 'Use another scope, or stop its processes and call change_inbox_mode().';
  END IF;
END $$;

-- bury() also takes back a claim that a handler has committed by itself before it failed: a copy of
-- the message would be answered as handled.
DROP FUNCTION {schema}.bury(text, text, bytea, text, text, jsonb, text, bigint, text, bigint, timestamptz, bigint);
CREATE FUNCTION {schema}.bury(
  scope text, key text, payload bytea, reason text, subject text, headers jsonb DEFAULT '{}', tenant text DEFAULT '',
  message_id bigint DEFAULT NULL, stream text DEFAULT NULL, stream_sequence bigint DEFAULT NULL,
  stored_at timestamptz DEFAULT NULL, deliveries bigint DEFAULT 1, committed_by xid8 DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fingerprint bytea;
  lock bigint;
  kept text := coalesce(nullif(left(bury.reason, 1000), ''), 'no reason given');
  answer text;
BEGIN
  IF bury.payload IS NULL OR bury.subject IS NULL THEN
    PERFORM {schema}.refuse_null(false, bury.payload IS NOT NULL);
  END IF;
  IF jsonb_typeof(bury.headers) <> 'object' THEN
    RAISE EXCEPTION 'headers are a JSON %, not an object', jsonb_typeof(bury.headers) USING ERRCODE = 'OB004';
  END IF;
  IF num_nulls(bury.stream, bury.stream_sequence, bury.stored_at) NOT IN (0, 3) THEN
    RAISE EXCEPTION 'stream, stream_sequence and stored_at are not given together'
      USING ERRCODE = 'OB011', HINT = 'They say where the message is stored. Leave all of them out for one that is in no stream.';
  END IF;
  PERFORM {schema}.check_inbox_names(bury.scope, bury.tenant), {schema}.check_key(bury.key);
  WHILE octet_length(convert_to(kept, 'UTF8')) > 1000 LOOP
    kept := left(kept, -((octet_length(convert_to(kept, 'UTF8')) - 997) / 4));
  END LOOP;
  IF bury.key IS NOT NULL THEN
    fingerprint := {schema}.inbox_fingerprint(bury.payload);
    lock := {schema}.inbox_lock(bury.scope, bury.tenant, bury.key);
    IF bury.committed_by IS NOT NULL THEN
      DELETE FROM {schema}.inbox AS i
      WHERE i.scope = bury.scope AND i.tenant = bury.tenant AND i.key = bury.key AND i.xmin = bury.committed_by::xid;
    END IF;
    FOR attempt IN 1 .. 3 LOOP
      INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status, outcome)
      SELECT s.scope, bury.tenant, bury.key, fingerprint, bury.message_id, 'dead', convert_to(kept, 'UTF8')
      FROM {schema}.inbox_scope AS s
      WHERE s.scope = bury.scope
        AND s.mode = 'transaction'
        AND pg_try_advisory_xact_lock(lock)
      ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING;
      IF FOUND THEN
        DELETE FROM {schema}.inbox_park AS p
        WHERE p.scope = bury.scope AND p.tenant = bury.tenant AND p.key = bury.key;
        DELETE FROM {schema}.inbox_attempt AS a
        WHERE a.scope = bury.scope AND a.tenant = bury.tenant AND a.key = bury.key;
        answer := 'new';
      ELSE
        SELECT l.answer INTO answer
        FROM {schema}.look_up_key(bury.scope, bury.tenant, bury.key, fingerprint, lock) AS l;
      END IF;
      EXIT WHEN answer IS NOT NULL;
    END LOOP;
  END IF;
  IF bury.key IS NULL OR answer IN ('new', 'mismatch') THEN
    PERFORM {schema}.record_dead_letter(bury.scope, bury.tenant, bury.key, bury.subject, coalesce(bury.headers, '{}'),
      bury.payload, bury.stream, bury.stream_sequence, bury.stored_at, coalesce(bury.deliveries, 1), kept);
  END IF;
  RETURN CASE WHEN bury.key IS NULL OR answer = 'new' THEN 'dead' ELSE coalesce(answer, 'in_flight') END;
END $$;
COMMENT ON FUNCTION {schema}.bury IS 'Gives a message up in a transaction of its own, after its rollback, and records it as a dead letter. Answers what its copies are answered: dead; or what decides instead: replayed, rejected, in_flight; or mismatch. A message without a valid key has key NULL. committed_by: the id of the transaction that claimed the key, when the handler has committed it by itself and then failed; its claim is taken back.';
