-- A message of any size can be claimed and given up, as by the Rust inbox: its stream has taken it.
-- claim() and bury() refused payloads above 8 MiB, so such a message of another publisher's was tried
-- again for ever. Both are those of 0022_inbox_functions.sql without that check.

CREATE OR REPLACE FUNCTION {schema}.claim(
  scope text, key text, payload bytea, tenant text DEFAULT '', message_id bigint DEFAULT NULL,
  OUT answer text, OUT outcome json, OUT reason text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fingerprint bytea;
  lock bigint;
  stored bytea;
BEGIN
  IF current_setting('transaction_deferrable') = current_setting('default_transaction_deferrable') THEN
    PERFORM {schema}.refuse_unmarked();
  END IF;
  IF claim.key IS NULL OR claim.payload IS NULL THEN
    PERFORM {schema}.refuse_null(claim.key IS NULL, false);
  END IF;
  IF {schema}.check_inbox_names(claim.scope, claim.tenant)
     AND {schema}.check_key(claim.key) THEN
    fingerprint := {schema}.inbox_fingerprint(claim.payload);
    lock := {schema}.inbox_lock(claim.scope, claim.tenant, claim.key);
  END IF;
  FOR attempt IN 1 .. 3 LOOP
    INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status)
    SELECT s.scope, claim.tenant, claim.key, fingerprint, claim.message_id, 'completed'
    FROM {schema}.inbox_scope AS s
    WHERE s.scope = claim.scope
      AND s.mode = 'transaction'
      AND pg_try_advisory_xact_lock(lock)
    ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING;
    IF FOUND THEN
      answer := 'new';
      RETURN;
    END IF;
    SELECT l.answer, l.outcome INTO answer, stored
    FROM {schema}.look_up_key(claim.scope, claim.tenant, claim.key, fingerprint, lock) AS l;
    IF answer = 'dead' THEN
      reason := convert_from(stored, 'UTF8');
    ELSE
      outcome := convert_from(stored, 'UTF8')::json;
    END IF;
    IF answer IS NOT NULL THEN
      RETURN;
    END IF;
  END LOOP;
  -- Others register the scope, or replace the row, at this moment.
  answer := 'in_flight';
END $$;

CREATE OR REPLACE FUNCTION {schema}.bury(
  scope text, key text, payload bytea, reason text, subject text, headers jsonb DEFAULT '{}', tenant text DEFAULT '',
  message_id bigint DEFAULT NULL, stream text DEFAULT NULL, stream_sequence bigint DEFAULT NULL,
  stored_at timestamptz DEFAULT NULL, deliveries bigint DEFAULT 1
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
