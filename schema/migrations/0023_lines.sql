-- Lines: the messages of one ordering key in a strictly ordered inbox. When one of them becomes a
-- dead letter, later ones are kept in inbox_behind, in their order, and do not run. A retry, or a
-- discard, of the dead letter moves its line on: one message at a time, the next when the one
-- before it has ended. One that becomes a dead letter again stops the line again.
--
-- Ids of both tables come from one sequence, and a message keeps its id on its way between them: a
-- line is in the order of ids. Each message of a line is judged after the ones before it have
-- ended, so a line that is free can be stopped by nothing but the next message itself. A line that
-- ends while a message joins it cannot leave that message alone: the message holds the row of the
-- last one FOR SHARE until it is written, and a row that is taken out has the next one looked for
-- afterwards.

-- Beforehand: dead_letter_line ON dead_letter
CREATE INDEX CONCURRENTLY dead_letter_line ON {schema}.dead_letter (scope, ordering_key, id) WHERE ordering_key IS NOT NULL;
-- Then:

ALTER TABLE {schema}.inbox_scope
  ADD COLUMN behind_max integer,
  ADD CONSTRAINT inbox_scope_behind CHECK (behind_max BETWEEN 1 AND 100000);
COMMENT ON COLUMN {schema}.inbox_scope.behind_max IS 'How many messages of one ordering key may wait for its dead letter; NULL: they overtake it. The consumer that started last has set it.';

CREATE TABLE {schema}.inbox_behind (
  id              bigint NOT NULL,
  scope           text COLLATE "C" NOT NULL,
  tenant          text NOT NULL,
  key             text COLLATE "C",
  ordering_key    text COLLATE "C" NOT NULL,
  subject         text NOT NULL,
  headers         jsonb NOT NULL,
  payload         bytea NOT NULL,
  stream          text COLLATE "C" NOT NULL,
  stream_sequence bigint NOT NULL,
  stored_at       timestamptz NOT NULL,
  is_due          boolean NOT NULL DEFAULT false,
  created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT inbox_behind_pkey PRIMARY KEY (id),
  CONSTRAINT inbox_behind_once UNIQUE (scope, stream, stream_sequence, stored_at)
);
COMMENT ON TABLE {schema}.inbox_behind IS 'Messages that wait for a dead letter of their ordering key, whole, and dead letters that were retried and have not ended. No retention deletes them.';
COMMENT ON COLUMN {schema}.inbox_behind.is_due IS 'The consumer runs it now: nothing of its line is before it.';
CREATE INDEX inbox_behind_line ON {schema}.inbox_behind (scope, ordering_key, id);
CREATE INDEX inbox_behind_due ON {schema}.inbox_behind (scope, id) WHERE is_due;
-- The messages of a key, which `oncebox why` looks for.
CREATE INDEX inbox_behind_key ON {schema}.inbox_behind (key);

-- The line of a message by its headers; NULL for one without an ordering key. An index takes no
-- text of any length.
CREATE FUNCTION {schema}.line_of(headers jsonb) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN (
  SELECT CASE WHEN octet_length(k.line) <= 255 THEN k.line ELSE encode(sha256(convert_to(k.line, 'UTF8')), 'hex') END
  FROM (
    SELECT CASE jsonb_typeof(h.value) WHEN 'array' THEN h.value ->> 0 ELSE h.value #>> '{}' END AS line
    FROM jsonb_each(headers) AS h (name, value)
    WHERE lower(h.name) = 'oncebox-ordering-key'
    LIMIT 1
  ) AS k
);

-- Has the first message of a line run, unless a dead letter is before it.
CREATE FUNCTION {schema}.advance_line(scope text, ordering_key text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE {schema}.inbox_behind AS b
  SET is_due = true
  WHERE NOT b.is_due
    AND b.id = (SELECT f.id FROM {schema}.inbox_behind AS f WHERE f.scope = $1 AND f.ordering_key = $2 ORDER BY f.id LIMIT 1)
    AND NOT EXISTS (SELECT FROM {schema}.dead_letter AS d WHERE d.scope = $1 AND d.ordering_key = $2 AND d.id < b.id)
$$;

-- A dead letter stops its line. One that was retried comes back under its id.
CREATE FUNCTION {schema}.stop_line() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  retried record;
BEGIN
  IF NEW.stream IS NOT NULL
     AND (SELECT s.behind_max FROM {schema}.inbox_scope AS s WHERE s.scope = NEW.scope) IS NOT NULL THEN
    NEW.ordering_key := {schema}.line_of(NEW.headers);
  END IF;
  DELETE FROM {schema}.inbox_behind AS b
  WHERE b.scope = NEW.scope AND b.stream = NEW.stream AND b.stream_sequence = NEW.stream_sequence AND b.stored_at = NEW.stored_at
  RETURNING b.id, b.ordering_key INTO retried;
  IF FOUND THEN
    NEW.id := retried.id;
    NEW.ordering_key := retried.ordering_key;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER stop_line BEFORE INSERT ON {schema}.dead_letter
  FOR EACH ROW EXECUTE FUNCTION {schema}.stop_line();

-- Retention never deletes a dead letter that messages wait for: they would run as if it had been
-- handled. An operator's retry or discard takes the letter out of its line first.
CREATE FUNCTION {schema}.keep_line() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM {schema}.inbox_behind AS b WHERE b.scope = OLD.scope AND b.ordering_key = OLD.ordering_key) THEN
    RETURN NULL;
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER keep_line BEFORE DELETE ON {schema}.dead_letter
  FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL) EXECUTE FUNCTION {schema}.keep_line();

-- A consumer calls this when it starts to consume, and learns whether any line of its scope is
-- stopped.
CREATE FUNCTION {schema}.follow_lines(scope text, behind_max integer DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}.check_inbox_names(follow_lines.scope, '');
  IF follow_lines.behind_max NOT BETWEEN 1 AND 100000 THEN
    RAISE EXCEPTION 'behind_max % is not 1 to 100000', follow_lines.behind_max
      USING ERRCODE = 'OB011', HINT = 'So many messages of one ordering key may wait behind its dead letter; NULL lets them overtake it.';
  END IF;
  UPDATE {schema}.inbox_scope AS s
  SET behind_max = follow_lines.behind_max
  WHERE s.scope = follow_lines.scope AND s.behind_max IS DISTINCT FROM follow_lines.behind_max;
  PERFORM {schema}.advance_line(follow_lines.scope, l.ordering_key)
  FROM (SELECT DISTINCT b.ordering_key FROM {schema}.inbox_behind AS b WHERE b.scope = follow_lines.scope) AS l;
  RETURN EXISTS (SELECT FROM {schema}.dead_letter AS d WHERE d.scope = follow_lines.scope AND d.ordering_key IS NOT NULL)
      OR EXISTS (SELECT FROM {schema}.inbox_behind AS b WHERE b.scope = follow_lines.scope);
END $$;
COMMENT ON FUNCTION {schema}.follow_lines IS 'Says, when a consumer has the right to consume and has found its place in the stream, how many messages of an ordering key may wait for a dead letter (NULL, and where there is no strict order: they overtake it). Answers whether the scope has lines that are stopped: then ask wait_in_line() before each claim, and next_in_line() every second.';

-- Puts a message into the line of the dead letter of its ordering key, in a transaction of its own,
-- before its claim. A key that has ended is answered by the claim, also if it died.
CREATE FUNCTION {schema}.wait_in_line(
  scope text, key text, payload bytea, subject text, headers jsonb, tenant text, stream text, stream_sequence bigint,
  stored_at timestamptz
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  line text := {schema}.line_of(wait_in_line.headers);
  settings record;
  waiting bigint;
BEGIN
  SELECT s.behind_max, s.retention_seconds INTO settings FROM {schema}.inbox_scope AS s WHERE s.scope = wait_in_line.scope;
  IF line IS NULL OR settings.behind_max IS NULL THEN
    RETURN 'free';
  END IF;
  PERFORM {schema}.check_inbox_names(wait_in_line.scope, wait_in_line.tenant), {schema}.check_key(wait_in_line.key),
          {schema}.check_stored_at(wait_in_line.stored_at);
  FOR attempt IN 1 .. 5 LOOP
    IF NOT EXISTS (SELECT FROM {schema}.dead_letter AS d WHERE d.scope = wait_in_line.scope AND d.ordering_key = line)
       AND NOT EXISTS (SELECT FROM {schema}.inbox_behind AS b WHERE b.scope = wait_in_line.scope AND b.ordering_key = line)
       OR EXISTS (
         SELECT FROM {schema}.inbox AS i
         WHERE i.scope = wait_in_line.scope AND i.tenant = wait_in_line.tenant AND i.key = wait_in_line.key
           AND NOT coalesce(i.created_at < statement_timestamp() - make_interval(secs => settings.retention_seconds), false)
       ) THEN
      RETURN 'free';
    END IF;
    -- The last of the line, or else its dead letter, stays until this message is written.
    PERFORM FROM {schema}.inbox_behind AS b
    WHERE b.scope = wait_in_line.scope AND b.ordering_key = line ORDER BY b.id DESC LIMIT 1 FOR SHARE;
    IF NOT FOUND THEN
      PERFORM FROM {schema}.dead_letter AS d
      WHERE d.scope = wait_in_line.scope AND d.ordering_key = line ORDER BY d.id DESC LIMIT 1 FOR SHARE;
    END IF;
    CONTINUE WHEN NOT FOUND;
    IF EXISTS (
      SELECT FROM {schema}.inbox_behind AS b
      WHERE b.scope = wait_in_line.scope AND b.stream = wait_in_line.stream
        AND b.stream_sequence = wait_in_line.stream_sequence AND b.stored_at = wait_in_line.stored_at
    ) OR EXISTS (
      SELECT FROM {schema}.dead_letter AS d
      WHERE d.scope = wait_in_line.scope AND d.stream = wait_in_line.stream
        AND d.stream_sequence = wait_in_line.stream_sequence AND d.stored_at = wait_in_line.stored_at
    ) THEN
      RETURN 'behind';
    END IF;
    SELECT count(*) INTO waiting
    FROM (
      SELECT FROM {schema}.inbox_behind AS b
      WHERE b.scope = wait_in_line.scope AND b.ordering_key = line
      LIMIT settings.behind_max
    ) AS b;
    IF waiting >= settings.behind_max THEN
      RETURN 'full';
    END IF;
    INSERT INTO {schema}.inbox_behind
      (id, scope, tenant, key, ordering_key, subject, headers, payload, stream, stream_sequence, stored_at)
    VALUES (nextval('{schema}.dead_letter_id_seq'), wait_in_line.scope, wait_in_line.tenant, wait_in_line.key, line,
            wait_in_line.subject, wait_in_line.headers,
            CASE WHEN {schema}.is_in_store(wait_in_line.headers, wait_in_line.payload) THEN '' ELSE wait_in_line.payload END,
            wait_in_line.stream, wait_in_line.stream_sequence, wait_in_line.stored_at)
    ON CONFLICT ON CONSTRAINT inbox_behind_once DO NOTHING;
    RETURN 'behind';
  END LOOP;
  -- Others change the line at this moment.
  RETURN 'full';
END $$;
COMMENT ON FUNCTION {schema}.wait_in_line IS 'Asked before the claim of a message with an ordering key, while lines of the scope are stopped: free (claim it), behind (it waits in the database until a dead letter is retried or discarded: acknowledge it), full (too many wait there: it stays in the stream, ask again later, and let no other of its ordering key pass).';

-- The next message that a consumer is to run from a line, by id; it goes on from the last one. A
-- row without an id says that lines are stopped, and nothing is to be run now; no row, that none
-- is.
CREATE FUNCTION {schema}.next_in_line(
  scope text, stream text, after bigint, OUT id bigint, OUT since bigint, OUT subject text, OUT headers jsonb,
  OUT payload bytea, OUT stream_sequence bigint, OUT stored_at timestamptz
) RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY
  SELECT b.id, (extract(epoch FROM b.created_at) * 1000000)::bigint, b.subject, b.headers, b.payload, b.stream_sequence, b.stored_at
  FROM {schema}.inbox_behind AS b
  WHERE b.scope = next_in_line.scope AND b.stream = next_in_line.stream AND b.is_due AND b.id > next_in_line.after
  ORDER BY b.id
  LIMIT 1;
  IF NOT FOUND AND (
    EXISTS (SELECT FROM {schema}.dead_letter AS d WHERE d.scope = next_in_line.scope AND d.ordering_key IS NOT NULL)
    OR EXISTS (SELECT FROM {schema}.inbox_behind AS b WHERE b.scope = next_in_line.scope)
  ) THEN
    RETURN NEXT;
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.next_in_line IS 'The next message of a line to run, above the id after: run it as one that was delivered before, without wait_in_line(), then call end_in_line().';

-- Takes a message out of its line that has ended: handled, rejected, replayed, dead or a mismatch.
-- `since` tells it from one that an operator has retried meanwhile.
CREATE FUNCTION {schema}.end_in_line(scope text, id bigint, since bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  line text;
BEGIN
  DELETE FROM {schema}.inbox_behind AS b
  WHERE b.id = end_in_line.id AND b.scope = end_in_line.scope
    AND (extract(epoch FROM b.created_at) * 1000000)::bigint = end_in_line.since
  RETURNING b.ordering_key INTO line;
  IF FOUND THEN
    PERFORM {schema}.advance_line(end_in_line.scope, line);
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.end_in_line IS 'Takes a message of next_in_line() out of its line once it has ended, also as a dead letter; the next one is due then.';

-- Its key is freed as by retry_letter(). Nothing is published: the consumer runs it.
CREATE FUNCTION {schema}.retry_in_line(id bigint, by text, note text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  letter {schema}.dead_letter;
BEGIN
  SELECT d.* INTO letter FROM {schema}.dead_letter AS d WHERE d.id = retry_in_line.id AND d.ordering_key IS NOT NULL FOR UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE {schema}.dead_letter AS d SET ordering_key = NULL WHERE d.id = letter.id;
  DELETE FROM {schema}.dead_letter AS d WHERE d.id = letter.id;
  INSERT INTO {schema}.inbox_behind
    (id, scope, tenant, key, ordering_key, subject, headers, payload, stream, stream_sequence, stored_at)
  VALUES (letter.id, letter.scope, letter.tenant, letter.key, letter.ordering_key, letter.subject, letter.headers,
          letter.payload, letter.stream, letter.stream_sequence, letter.stored_at)
  ON CONFLICT ON CONSTRAINT inbox_behind_once DO NOTHING;
  DELETE FROM {schema}.inbox AS i
  WHERE i.scope = letter.scope AND i.tenant = letter.tenant AND i.key = letter.key AND i.status = 'dead'
    AND i.fingerprint = coalesce(letter.fingerprint, {schema}.inbox_fingerprint(letter.payload));
  INSERT INTO {schema}.audit (operator, note, action, message_id, scope, key, subject, reason)
  VALUES (retry_in_line.by, retry_in_line.note, 'retry', letter.id, letter.scope, letter.key, letter.subject, letter.reason);
  PERFORM {schema}.advance_line(letter.scope, letter.ordering_key);
  RETURN true;
END $$;
COMMENT ON FUNCTION {schema}.retry_in_line IS 'For operators: has a dead letter of a line run again, before those that wait for it. False for one of no line: retry_letter().';

CREATE FUNCTION {schema}.discard_letters(ids bigint[], by text, note text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  lined bigint[];
  scopes text[];
  lines text[];
BEGIN
  PERFORM {schema}.bound_kept();
  WITH letter AS MATERIALIZED (
    SELECT d.id, d.scope, d.ordering_key
    FROM {schema}.dead_letter AS d
    WHERE d.id = ANY (discard_letters.ids) AND d.ordering_key IS NOT NULL
    ORDER BY d.id
    FOR UPDATE
  ),
  freed AS (
    UPDATE {schema}.dead_letter AS d
    SET ordering_key = NULL
    FROM letter AS l
    WHERE d.id = l.id
    RETURNING l.id, l.scope, l.ordering_key
  )
  SELECT array_agg(f.id), array_agg(f.scope), array_agg(f.ordering_key) INTO lined, scopes, lines FROM freed AS f;
  RETURN QUERY
  WITH gone AS (
    DELETE FROM {schema}.dead_letter AS d
    WHERE d.id = ANY (discard_letters.ids)
    RETURNING d.*
  ),
  noted AS (
    INSERT INTO {schema}.audit (operator, note, action, message_id, scope, key, subject, reason)
    SELECT discard_letters.by, discard_letters.note, 'discard', g.id, g.scope, g.key, g.subject, g.reason
    FROM gone AS g
    RETURNING audit.id, message_id
  ),
  kept AS (
    INSERT INTO {schema}.kept (audit, origin, id, bytes, columns, payload)
    SELECT n.id, 'dead_letter', g.id, octet_length(g.payload),
      (to_jsonb(g) - 'payload') || jsonb_build_object('ordering_key', l.line), g.payload
    FROM noted AS n
    JOIN gone AS g ON g.id = n.message_id
    LEFT JOIN unnest(lined, lines) AS l (id, line) ON l.id = g.id
  )
  SELECT n.message_id
  FROM noted AS n;
  PERFORM {schema}.advance_line(l.scope, l.line) FROM unnest(scopes, lines) AS l (scope, line);
END $$;
COMMENT ON FUNCTION {schema}.discard_letters IS 'For operators: takes dead letters out, and keeps them for a day, see undo_discard(); their keys stay settled as dead, and messages that waited for them run. Returns their ids.';
