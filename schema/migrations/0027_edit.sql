-- Edit: an operator changes the headers or the payload of a dead message, or of a dead letter, and
-- has it tried again. The changed message is a new fact with a key of its own,
-- KEY:oncebox-edit-1, then KEY:oncebox-edit-2. The old key stays as it is: a copy of the old
-- message is answered as before, and a producer that enqueues it again finds it enqueued.
--
-- Other inboxes may have handled the old message, or still try it. A claim of an edit is answered
-- from the outcome of the key, or of another edit, that has ended; else it takes the place of the
-- key and of earlier edits, which are dead in this inbox from then on. A fingerprint of no bytes
-- says so: it stands for every payload, and no retry of a dead letter frees it. No step of a user
-- may be named like an edit: step_key() refuses "oncebox-".
--
-- In the log the edited message takes the place of the old one, so order, replays, proofs and the
-- repair of losses see it and no other. A row of lane -2, which no relay claims, keeps the old key.
-- The audit has the digests of the payloads, and the names of the headers; never a value of one.

CREATE FUNCTION {schema}.edit_root(key text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN regexp_replace(key, ':oncebox-edit-[1-9][0-9]*$', '');

-- How a key, or another edit of it, has ended in an inbox; no row when none has.
CREATE FUNCTION {schema}.ended_before_edit(scope text, tenant text, key text) RETURNS TABLE (status text, outcome bytea)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT i.status, i.outcome
  FROM {schema}.inbox AS i
  CROSS JOIN (SELECT {schema}.edit_root($3) COLLATE "C" AS root) AS r
  WHERE i.scope = $1
    AND i.tenant = $2
    AND (i.key = r.root OR i.key > r.root || ':oncebox-edit-' AND i.key < r.root || ':oncebox-edit.')
    AND {schema}.edit_root(i.key) = r.root
    AND i.key <> $3
    AND {schema}.edit_root($3) <> $3
    AND i.status IN ('completed', 'rejected')
  ORDER BY i.created_at
  LIMIT 1
$$;

-- The key of an edit, and of a hundred earlier edits.
CREATE FUNCTION {schema}.before_edit(key text) RETURNS SETOF text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT {schema}.edit_root($1)
  UNION ALL
  SELECT {schema}.edit_root($1) || ':oncebox-edit-' || earlier
  FROM substring($1 FROM ':oncebox-edit-([1-9][0-9]{0,8})$') AS number,
    generate_series(greatest(number::integer - 100, 1), number::integer - 1) AS earlier
$$;

-- Under a lease no transaction is open, and the claims say who works on the key, or on an earlier
-- edit. A claim that failed, or whose lease is over, is taken away, so that its owner cannot end it
-- any more. A row is inserted where there is none: who claims the key at this moment has it, or
-- waits until the edit is claimed.
CREATE FUNCTION {schema}.take_claims_before(scope text, tenant text, key text, owner uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  has_owner boolean;
BEGIN
  INSERT INTO {schema}.inbox_claim AS c (scope, tenant, key, fingerprint, owner, lease_until)
  SELECT $1, $2, b.key, '', $4, '-infinity'
  FROM {schema}.before_edit($3) AS b (key)
  ORDER BY b.key
  ON CONFLICT ON CONSTRAINT inbox_claim_pkey DO UPDATE SET lease_until = c.lease_until;
  has_owner := EXISTS (
    SELECT
    FROM {schema}.inbox_claim AS c
    WHERE c.scope = $1 AND c.tenant = $2 AND c.key IN (SELECT {schema}.before_edit($3))
      AND c.lease_until > clock_timestamp() AND c.state <> 'failed'
  );
  DELETE FROM {schema}.inbox_claim AS c
  WHERE c.scope = $1 AND c.tenant = $2 AND c.key IN (SELECT {schema}.before_edit($3))
    AND (c.lease_until = '-infinity' OR NOT has_owner);
  UPDATE {schema}.inbox_effect AS e
  SET epoch = 0
  WHERE NOT has_owner AND e.scope = $1 AND e.tenant = $2 AND e.key IN (SELECT {schema}.before_edit($3));
  RETURN NOT has_owner;
END $$;

-- Before a claim of an edit. The outcome is copied to its key, for clients that read it by the key.
-- While a transaction works on the key or another edit, this one too, the claim is in flight: the
-- lock is that of claim().
CREATE FUNCTION {schema}.claim_edit_once() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  root text COLLATE "C" := {schema}.edit_root(NEW.key);
BEGIN
  -- A client names its requests as it likes; a claim under a lease has passed this when it ends.
  IF root = NEW.key OR EXISTS (
       SELECT
       FROM {schema}.inbox_scope AS s
       WHERE s.scope = NEW.scope AND (s.kind = 'http' OR s.mode = 'lease' AND TG_TABLE_NAME = 'inbox')
     ) THEN
    RETURN NEW;
  END IF;
  IF NOT pg_try_advisory_xact_lock({schema}.inbox_lock(NEW.scope, NEW.tenant, root)) OR EXISTS (
       SELECT
       FROM {schema}.inbox AS i
       WHERE i.scope = NEW.scope AND i.tenant = NEW.tenant AND i.key <> NEW.key AND i.fingerprint <> ''
         AND (i.key = root OR i.key > root || ':oncebox-edit-' AND i.key < root || ':oncebox-edit.')
         AND {schema}.edit_root(i.key) = root
         AND {schema}.is_own(i.xmin)
     ) THEN
    RETURN NULL;
  END IF;
  IF TG_TABLE_NAME = 'inbox_claim' THEN
    IF NOT {schema}.take_claims_before(NEW.scope, NEW.tenant, NEW.key, NEW.owner) THEN
      RETURN NULL;
    END IF;
  END IF;
  INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status, outcome)
  SELECT NEW.scope, NEW.tenant, NEW.key, NEW.fingerprint, NEW.message_id, e.status, e.outcome
  FROM {schema}.ended_before_edit(NEW.scope, NEW.tenant, NEW.key) AS e
  ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING;
  IF FOUND THEN
    RETURN NULL;
  END IF;
  INSERT INTO {schema}.inbox AS i (scope, tenant, key, fingerprint, status, outcome)
  SELECT NEW.scope, NEW.tenant, b.key, '', 'dead', convert_to(format('%s came in its place', NEW.key), 'UTF8')
  FROM {schema}.before_edit(NEW.key) AS b (key)
  ORDER BY b.key
  ON CONFLICT ON CONSTRAINT inbox_pkey DO UPDATE
  SET fingerprint = '', outcome = excluded.outcome
  WHERE i.status = 'dead' AND i.fingerprint <> '';
  DELETE FROM {schema}.inbox_attempt AS a
  WHERE a.scope = NEW.scope AND a.tenant = NEW.tenant AND a.key IN (SELECT {schema}.before_edit(NEW.key));
  RETURN NEW;
END $$;
CREATE TRIGGER claim_edit_once BEFORE INSERT ON {schema}.inbox
  FOR EACH ROW WHEN (strpos(NEW.key, ':oncebox-edit-') > 0 AND pg_trigger_depth() = 0) EXECUTE FUNCTION {schema}.claim_edit_once();
CREATE TRIGGER claim_edit_once BEFORE INSERT ON {schema}.inbox_claim
  FOR EACH ROW WHEN (strpos(NEW.key, ':oncebox-edit-') > 0 AND pg_trigger_depth() = 0) EXECUTE FUNCTION {schema}.claim_edit_once();

-- The headers and the payload of a row as they were shown: an edit is of these and no other.
CREATE FUNCTION {schema}.content_digest(headers jsonb, payload bytea) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
RETURN sha256(convert_to(headers::text, 'UTF8') || '\x00'::bytea || payload);

-- The key of the next edit: the audit counts those of this database.
CREATE FUNCTION {schema}.edit_key(key text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  root text COLLATE "C" := {schema}.edit_root(edit_key.key);
  number bigint;
  edited text;
BEGIN
  SELECT count(*) INTO number
  FROM {schema}.audit AS a
  WHERE a.action = 'edit' AND (a.key = root OR a.key > root || ':oncebox-edit-' AND a.key < root || ':oncebox-edit.')
    AND {schema}.edit_root(a.key) = root;
  LOOP
    number := number + 1;
    edited := root || ':oncebox-edit-' || number;
    PERFORM {schema}.check_key(edited);
    EXIT WHEN NOT EXISTS (SELECT FROM {schema}.log AS l WHERE l.key = edited);
  END LOOP;
  RETURN edited;
END $$;

-- Refuses a row that is not the one that was shown, a change of headers that Oncebox or the broker
-- sets, and messages whose sender waits for an answer to their key.
CREATE FUNCTION {schema}.check_edit(
  old_headers jsonb, old_payload bytea, headers jsonb, payload bytea, seen bytea, note text
) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fixed text;
BEGIN
  IF seen IS DISTINCT FROM {schema}.content_digest(old_headers, old_payload) THEN
    RAISE EXCEPTION 'the message is not the one that was shown'
      USING ERRCODE = 'OB011', HINT = 'Somebody else has edited it, or it died again. Look at it again.';
  ELSIF note IS NULL THEN
    RAISE EXCEPTION 'an edit needs a reason' USING ERRCODE = 'OB011', HINT = 'Say why, for the audit: --note.';
  ELSIF old_headers = headers AND old_payload = payload THEN
    RAISE EXCEPTION 'nothing is changed' USING ERRCODE = 'OB011', HINT = 'Retry it as it is, or change its payload or a header.';
  ELSIF EXISTS (SELECT FROM jsonb_object_keys(old_headers) AS h (name) WHERE lower(h.name) IN ('oncebox-reply-to', 'in-reply-to')) THEN
    RAISE EXCEPTION 'the message belongs to a conversation: an answer goes by its key, and an edit would give it another'
      USING ERRCODE = 'OB011', HINT = 'Retry it as it is; of a saga, retry the step, or skip it with the reply.';
  END IF;
  SELECT min(n.name) INTO fixed
  FROM (SELECT jsonb_object_keys(old_headers || headers)) AS n (name)
  WHERE n.name COLLATE "C" ~* '^(nats-|oncebox-|(x-)?idempotency-key$|ce-id$|ce-dataref$)'
    AND (old_headers -> n.name) IS DISTINCT FROM (headers -> n.name);
  IF fixed IS NOT NULL THEN
    RAISE EXCEPTION 'header "%" is set by Oncebox or commands the broker', left(fixed, 300) USING ERRCODE = 'OB004';
  END IF;
  PERFORM {schema}.check_payload(payload);
END $$;

-- The SHA-256 of a payload, also of one that stays in its bucket.
CREATE FUNCTION {schema}.payload_digest(headers jsonb, payload bytea) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT encode(coalesce((
      SELECT decode(translate(substr(h.value, 9), '-_', '+/'), 'base64')
      FROM jsonb_each_text($1) AS h (name, value)
      WHERE $2 = '' AND lower(h.name) = 'oncebox-object-digest' AND h.value ~ '^SHA-256=[A-Za-z0-9_-]{43}=$'
      LIMIT 1
    ), sha256($2)), 'hex')
$$;

-- The text of an edit in the audit.
CREATE FUNCTION {schema}.edit_reason(
  new_key text, old_headers jsonb, old_payload bytea, headers jsonb, payload bytea
) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('%s; payload SHA-256 %s to %s; headers changed: %s', $1,
    {schema}.payload_digest($2, $3), {schema}.payload_digest($4, $5),
    coalesce((
      SELECT string_agg(n.name, ', ' ORDER BY n.name)
      FROM (SELECT jsonb_object_keys($2 || $4)) AS n (name)
      WHERE ($2 -> n.name) IS DISTINCT FROM ($4 -> n.name)
    ), 'none'))
$$;

-- Rewrites a row of the log, where the log still has it. A row of lane -2 keeps its old key taken.
-- Where the new key has such a row, an edit is taken back, and the row goes.
CREATE FUNCTION {schema}.rewrite_message(lane smallint, id bigint, key text, headers jsonb, payload bytea) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  old record;
  kept regclass;
BEGIN
  SELECT l.tableoid::regclass AS segment, l.key, l.subject, l.payload INTO old
  FROM {schema}.log AS l
  WHERE l.lane = rewrite_message.lane AND l.id = rewrite_message.id;
  SELECT l.tableoid::regclass INTO kept FROM {schema}.log AS l WHERE l.key = rewrite_message.key AND l.lane = -2;
  IF kept IS NOT NULL THEN
    EXECUTE format('DELETE FROM %s AS m WHERE m.lane = -2 AND m.key = $1', kept) USING rewrite_message.key;
  END IF;
  IF old.segment IS NULL THEN
    RETURN;
  END IF;
  EXECUTE format('UPDATE %s AS m SET key = $3, headers = $4, payload = $5 WHERE m.lane = $1 AND m.id = $2', old.segment)
    USING rewrite_message.lane, rewrite_message.id, rewrite_message.key, rewrite_message.headers, rewrite_message.payload;
  IF kept IS NULL THEN
    PERFORM {schema}.append(ARRAY[nextval('{schema}.message_id_seq')], '{-2}', ARRAY[old.key], ARRAY[old.subject], '{NULL}',
                            ARRAY['{}'::jsonb], ARRAY[old.payload], true);
  END IF;
END $$;

-- Under the lock of maintenance no segment is emptied meanwhile, as in replay_messages().
CREATE FUNCTION {schema}.edit_dead(
  lane smallint, id bigint, headers jsonb, payload bytea, seen bytea, by text, note text
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  old {schema}.parked;
  new_key text;
  noted bigint;
BEGIN
  PERFORM FROM {schema}.maintenance FOR UPDATE;
  PERFORM FROM {schema}.lane AS l WHERE l.lane = edit_dead.lane FOR UPDATE;
  PERFORM {schema}.bound_kept();
  SELECT p.* INTO old
  FROM {schema}.parked AS p
  WHERE p.lane = edit_dead.lane AND p.id = edit_dead.id AND p.dead_at IS NOT NULL;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'message % is not dead any more', edit_dead.id USING ERRCODE = 'OB011';
  ELSIF old.replay > 0 THEN
    RAISE EXCEPTION 'message % was stored once, and only its replay is dead', edit_dead.id
      USING ERRCODE = 'OB011', HINT = 'Give the replay up, and enqueue another message.';
  END IF;
  PERFORM {schema}.check_edit(old.headers, old.payload, edit_dead.headers, edit_dead.payload, seen, note),
          {schema}.check_headers(edit_dead.headers);
  new_key := {schema}.edit_key(old.key);
  PERFORM {schema}.rewrite_message(old.lane, old.id, new_key, edit_dead.headers, edit_dead.payload);
  UPDATE {schema}.parked AS p
  SET key = new_key, headers = edit_dead.headers, payload = edit_dead.payload, waits_for = NULL
  WHERE p.lane = old.lane AND p.id = old.id;
  PERFORM {schema}.make_due(old.lane, ARRAY[old.id]);
  INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
  VALUES (by, note, 'edit', old.lane, old.id, old.key, old.subject,
          {schema}.edit_reason(new_key, old.headers, old.payload, edit_dead.headers, edit_dead.payload))
  RETURNING audit.id INTO noted;
  INSERT INTO {schema}.kept (audit, origin, lane, id, bytes, columns, payload)
  VALUES (noted, 'edited', old.lane, old.id, octet_length(old.payload),
          (to_jsonb(old) - 'payload') || jsonb_build_object('edited', new_key), old.payload);
  RETURN new_key;
END $$;
COMMENT ON FUNCTION {schema}.edit_dead IS 'For operators: gives a dead message other headers and another payload, under the next key KEY:oncebox-edit-N, and makes it due; keeps it as it was for a day, see undo_discard(). seen: content_digest() of the row that was shown. Returns the new key.';

-- The letter is gone, and its key stays dead: a copy of the old message is answered so. A key that
-- the consumer did not read from a header would be read again, and be dead.
CREATE FUNCTION {schema}.edit_letter(
  id bigint, headers jsonb, payload bytea, seen bytea, by text, note text,
  OUT outbox text, OUT key text, OUT subject text, OUT edited_headers text, OUT edited_payload bytea, OUT number bigint,
  OUT is_in_line boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  old {schema}.dead_letter;
  final jsonb := edit_letter.headers;
  header record;
  has_key boolean := false;
BEGIN
  SELECT d.* INTO old FROM {schema}.dead_letter AS d WHERE d.id = edit_letter.id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'dead letter % is gone', edit_letter.id USING ERRCODE = 'OB011';
  ELSIF old.key IS NULL THEN
    RAISE EXCEPTION 'dead letter % has no valid key, so an edit of it can have none', edit_letter.id
      USING ERRCODE = 'OB011', HINT = 'Enqueue the right message under a key of its own, and discard the letter.';
  ELSIF EXISTS (SELECT FROM {schema}.inbox AS i WHERE i.scope = old.scope AND i.tenant = old.tenant AND i.key = old.key AND i.status <> 'dead') THEN
    RAISE EXCEPTION 'the inbox has handled another message under the key of dead letter %, and would answer its edit as a copy of that', edit_letter.id
      USING ERRCODE = 'OB011', HINT = 'Enqueue it under a key of its own, and discard the letter.';
  END IF;
  PERFORM {schema}.check_edit(old.headers, old.payload, edit_letter.headers, edit_letter.payload, seen, note),
          {schema}.check_headers(coalesce(jsonb_object_agg(h.name, h.value), '{}'))
  FROM jsonb_each(edit_letter.headers) AS h (name, value)
  WHERE (old.headers -> h.name) IS DISTINCT FROM h.value;
  key := {schema}.edit_key(old.key);
  FOR header IN SELECT h.name, h.value #>> '{}' AS value FROM jsonb_each(edit_letter.headers) AS h (name, value) LOOP
    CASE
      WHEN lower(header.name) IN ('idempotency-key', 'x-idempotency-key') AND header.value = old.key THEN
        final := final || jsonb_build_object(header.name, key);
        has_key := true;
      WHEN lower(header.name) = 'nats-msg-id' THEN
        final := (final - header.name) || jsonb_build_object('Nats-Msg-Id', key);
        has_key := has_key OR header.value = old.key OR header.value LIKE '%/' || old.key;
      WHEN lower(header.name) = 'ce-id' THEN
        final := final || jsonb_build_object(header.name, {schema}.edit_root(header.value) || substring(key FROM ':oncebox-edit-[0-9]+$'));
      -- A new payload is in the message; the old one stays in its bucket.
      WHEN edit_letter.payload <> old.payload AND lower(header.name) ~ '^(oncebox-object.*|ce-dataref)$' THEN
        final := final - header.name;
      ELSE NULL;
    END CASE;
  END LOOP;
  IF NOT has_key THEN
    RAISE EXCEPTION 'the key of dead letter % is in none of its headers, so an edit cannot give it another', edit_letter.id
      USING ERRCODE = 'OB011', HINT = 'Publish the right message where it came from, and discard the letter.';
  END IF;
  SELECT o.identity INTO outbox FROM {schema}.outbox AS o;
  subject := old.subject;
  edited_headers := final::text;
  edited_payload := edit_letter.payload;
  number := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
  is_in_line := old.ordering_key IS NOT NULL;
  UPDATE {schema}.dead_letter AS d SET ordering_key = NULL WHERE d.id = old.id AND is_in_line;
  DELETE FROM {schema}.dead_letter AS d WHERE d.id = old.id;
  -- As when the edit is claimed: no operator shall be told to send the old message again.
  UPDATE {schema}.inbox AS i
  SET fingerprint = '', outcome = convert_to(format('%s came in its place', edit_letter.key), 'UTF8')
  WHERE i.scope = old.scope AND i.tenant = old.tenant AND i.key = old.key AND i.status = 'dead';
  INSERT INTO {schema}.inbox_behind
    (id, scope, tenant, key, ordering_key, subject, headers, payload, stream, stream_sequence, stored_at)
  SELECT old.id, old.scope, old.tenant, edit_letter.key, old.ordering_key, old.subject, final, edit_letter.payload, old.stream,
         old.stream_sequence, old.stored_at
  WHERE is_in_line
  ON CONFLICT ON CONSTRAINT inbox_behind_once DO NOTHING;
  INSERT INTO {schema}.audit (operator, note, action, message_id, scope, key, subject, reason)
  VALUES (by, note, 'edit', old.id, old.scope, old.key, old.subject,
          {schema}.edit_reason(key, old.headers, old.payload, edit_letter.headers, edit_letter.payload));
  PERFORM {schema}.advance_line(old.scope, old.ordering_key) WHERE is_in_line;
END $$;
COMMENT ON FUNCTION {schema}.edit_letter IS 'For operators: takes a dead letter out, and returns it with other headers and another payload under the next key KEY:oncebox-edit-N. The caller publishes it, and then commits; one that is in a line is run by its consumer. seen: content_digest() of the row that was shown.';
