-- The grammar of keys, subjects, ordering keys, headers and payloads. Rust checks the same
-- (schema/src/key.rs, schema/src/subject.rs); schema/vectors has examples for both.
--
-- Tables are private; functions are the interface. A check is also called by CHECK constraints, so
-- it returns true or raises an error that names the field and the limit, never false. No error
-- contains a payload or the value of a header.
--
-- Our SQLSTATEs: OB001 the key names another message, OB002 key, OB003 subject, OB004 headers,
-- OB005 payload, OB006 ordering key, OB007 arguments of enqueue_all(), OB008 the time of a delayed
-- message, OB009 a saga is in another state, OB010 a call of the inbox at the wrong place, OB011 an
-- argument of the inbox, OB012 an end at the barrier without its run.

-- Bounded repetitions are slow in PostgreSQL's regular expressions. They run only on keys that are
-- long enough to break a limit.
CREATE FUNCTION {schema}.check_key(key text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  root text;
  number text;
BEGIN
  IF octet_length(key) <= 128 AND key COLLATE "C" ~ '^[!-$&-9;-~]+$' THEN
    RETURN true;
  END IF;
  IF octet_length(key) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'key is % bytes long; the limit is 1 to 255 bytes', octet_length(key)
      USING ERRCODE = 'OB002', HINT = 'Use a shorter root key, or fewer and shorter steps.';
  END IF;
  IF key COLLATE "C" !~ '^([!-$&-9;-~]|%3A|%25)+(:([a-z0-9][a-z0-9._-]*|#(0|[1-9][0-9]*)))*$' THEN
    RAISE EXCEPTION 'key "%" is not ROOT or ROOT:STEP...: visible ASCII, with ":" and "%%" of the root written as %%3A and %%25, steps like [a-z0-9][a-z0-9._-]*', key
      USING ERRCODE = 'OB002', HINT = format('Escape a client''s key with %s.root_key(text), add steps with step_key(key, step).', '{name}');
  END IF;
  root := replace(replace(split_part(key, ':', 1), '%3A', ':'), '%25', '%');
  IF octet_length(root) > 128 THEN
    RAISE EXCEPTION 'root of key "%" is % bytes long; the limit is 128 bytes', key, octet_length(root)
      USING ERRCODE = 'OB002';
  END IF;
  IF octet_length(key) > 66 AND key ~ ':[^:]{65}' THEN
    RAISE EXCEPTION 'a step of key "%" is longer than 64 bytes', key USING ERRCODE = 'OB002';
  END IF;
  IF key LIKE '%:undo:undo%' AND key ~ ':undo:undo(:|$)' THEN
    RAISE EXCEPTION 'key "%" undoes an undo', key USING ERRCODE = 'OB002';
  END IF;
  IF key LIKE '%:#%' THEN
    FOR number IN SELECT matches[1] FROM regexp_matches(key, ':#([0-9]+)', 'g') AS matches LOOP
      IF length(number) > 10 OR number::bigint > 4294967295 THEN
        RAISE EXCEPTION 'part #% of key "%" is above 4294967295', number, key USING ERRCODE = 'OB002';
      END IF;
    END LOOP;
  END IF;
  RETURN true;
END $$;

-- Escapes a client's key, so that ":" only ever separates levels.
CREATE FUNCTION {schema}.root_key(client_key text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  escaped text := replace(replace(client_key, '%', '%25'), ':', '%3A');
BEGIN
  IF octet_length(client_key) NOT BETWEEN 1 AND 128 THEN
    RAISE EXCEPTION 'root key is % bytes long; the limit is 1 to 128 bytes', octet_length(client_key)
      USING ERRCODE = 'OB002';
  END IF;
  PERFORM {schema}.check_key(escaped);
  RETURN escaped;
END $$;

-- The key of a step below a key.
CREATE FUNCTION {schema}.step_key(key text, step text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF step COLLATE "C" !~ '^[a-z0-9][a-z0-9._-]*$' OR step = 'undo' OR starts_with(step, 'oncebox-') THEN
    RAISE EXCEPTION 'step "%" does not match [a-z0-9][a-z0-9._-]{0,63}, or is reserved: "undo", and what begins with "oncebox-"', step
      USING ERRCODE = 'OB002';
  END IF;
  PERFORM {schema}.check_key(key || ':' || step);
  RETURN key || ':' || step;
END $$;

-- The key of one of many parts below a key.
CREATE FUNCTION {schema}.part_key(key text, part bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF part NOT BETWEEN 0 AND 4294967295 THEN
    RAISE EXCEPTION 'part % is not between 0 and 4294967295', part USING ERRCODE = 'OB002';
  END IF;
  PERFORM {schema}.check_key(key || ':#' || part);
  RETURN key || ':#' || part;
END $$;

-- The key of the compensation of a step.
CREATE FUNCTION {schema}.undo_key(key text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}.check_key(key || ':undo');
  RETURN key || ':undo';
END $$;

-- NATS has no form for other subjects, or reads them as wildcards.
CREATE FUNCTION {schema}.check_subject(subject text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  IF octet_length(subject) > 255
     OR subject COLLATE "C" !~ '^[!#%-)+-\-/-=?-~][!-)+-\-/-=?-~]*(\.[!-)+-\-/-=?-~]+)*$'
     OR subject LIKE '\_INBOX.%' THEN
    RAISE EXCEPTION 'subject "%" is not 1 to 255 bytes of visible ASCII in non-empty tokens without "*" and ">"', left(subject, 300)
      USING ERRCODE = 'OB003', HINT = 'Subjects that begin with "$" or "_INBOX." belong to NATS itself.';
  END IF;
  RETURN true;
END $$;

-- One ordering key is one token of visible ASCII, so that it fits a header.
CREATE FUNCTION {schema}.check_ordering_key(ordering_key text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  IF octet_length(ordering_key) NOT BETWEEN 1 AND 255 OR ordering_key COLLATE "C" !~ '^[!-~]+$' THEN
    RAISE EXCEPTION 'ordering key "%" is not 1 to 255 bytes of visible ASCII', left(ordering_key, 300)
      USING ERRCODE = 'OB006', HINT = 'Leave it NULL for messages that need no order.';
  END IF;
  RETURN true;
END $$;

-- The relay sets the headers of Oncebox itself, and Nats- headers command the broker. The one name
-- of Oncebox that a producer sets is the subject for the reply. A value must arrive as it was
-- enqueued: NATS drops blanks at both ends, and a database whose encoding is not UTF8 may hold
-- bytes that have no form in UTF-8, which relay and NATS speak.
CREATE FUNCTION {schema}.check_headers(headers jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  header record;
  value text;
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
    value := header.value #>> '{}';
    IF header.name COLLATE "C" !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' OR octet_length(header.name) > 128 THEN
      RAISE EXCEPTION 'header name "%" is not 1 to 128 characters of an HTTP token', left(header.name, 300) USING ERRCODE = 'OB004';
    END IF;
    IF lower(header.name) = 'oncebox-reply-to' AND header.name <> 'Oncebox-Reply-To' THEN
      RAISE EXCEPTION 'header "%" is spelt "Oncebox-Reply-To"', header.name USING ERRCODE = 'OB004';
    END IF;
    IF header.name COLLATE "C" ~* '^(nats-|oncebox-|(x-)?idempotency-key$)' AND header.name <> 'Oncebox-Reply-To' THEN
      RAISE EXCEPTION 'header "%" is set by the relay or commands the broker', header.name USING ERRCODE = 'OB004';
    END IF;
    IF jsonb_typeof(header.value) <> 'string' OR value COLLATE "C" ~ '[\x01-\x08\x0a-\x1f\x7f]' THEN
      RAISE EXCEPTION 'value of header "%" is not a string without control characters', header.name USING ERRCODE = 'OB004';
    END IF;
    IF value COLLATE "C" ~ '^[ \t]|[ \t]$' THEN
      RAISE EXCEPTION 'value of header "%" begins or ends with a blank, which NATS would drop', header.name
        USING ERRCODE = 'OB004', HINT = 'Trim the value, or encode it in ASCII.';
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
      BEGIN
        PERFORM convert_to(value, 'UTF8');
      EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
        RAISE EXCEPTION 'value of header "%" has a byte that cannot be converted to UTF-8', header.name
          USING ERRCODE = 'OB004', HINT = 'Trim the value, or encode it in ASCII.';
      END;
    END IF;
    IF header.name = 'Oncebox-Reply-To' THEN
      PERFORM {schema}.check_subject(value);
    END IF;
  END LOOP;
  RETURN true;
END $$;

-- An error has the size only: a payload must never reach a log.
CREATE FUNCTION {schema}.check_payload(payload bytea) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  IF octet_length(payload) > 67108864 THEN
    RAISE EXCEPTION 'payload is % bytes long; the limit is 67108864 bytes (64 MiB)', octet_length(payload)
      USING ERRCODE = 'OB005', HINT = 'Store larger bodies elsewhere and send a reference. The relay sends more than 8 MiB, and more than the max_payload of nats-server, with --object-store only.';
  END IF;
  RETURN true;
END $$;

-- Most messages keep the grammar by a long way. This says so in one expression, which the planner
-- writes into the caller's own: a fifth of the time that the five checks above take. Of all others
-- it says nothing: check_message() decides.
CREATE FUNCTION {schema}.is_plain(key text, subject text, ordering_key text, headers jsonb, payload bytea) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN octet_length(key) <= 66
  AND key COLLATE "C" ~ '^[!-$&-9;-~]+(:[a-z0-9][a-z0-9._-]*)*$'
  AND strpos(key, ':undo:undo') = 0
  AND octet_length(subject) <= 255
  AND subject COLLATE "C" ~ '^[A-Za-z0-9-][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$'
  AND NOT starts_with(subject, 'oncebox.events.')
  AND (ordering_key IS NULL OR octet_length(ordering_key) <= 255 AND ordering_key COLLATE "C" ~ '^[!-~]+$')
  AND headers = '{}'
  AND octet_length(payload) <= 67108864;

-- Checks a message, field by field.
CREATE FUNCTION {schema}.check_message(key text, subject text, ordering_key text, headers jsonb, payload bytea) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF key IS NULL OR subject IS NULL OR payload IS NULL THEN
    PERFORM {schema}.refuse_null(key IS NULL, subject IS NULL);
  END IF;
  PERFORM {schema}.check_key(key), {schema}.check_subject(subject), {schema}.check_ordering_key(ordering_key),
    {schema}.check_headers(headers), {schema}.check_payload(payload);
  IF starts_with(subject, 'oncebox.events.') THEN
    RAISE EXCEPTION 'subject "%" is one of Oncebox''s own events', left(subject, 300)
      USING ERRCODE = 'OB003', HINT = 'Programs trust these to come from Oncebox: choose another subject.';
  END IF;
END $$;

-- Called before an INSERT: PostgreSQL's own error for a NULL prints the row, and with it the
-- payload.
CREATE FUNCTION {schema}.refuse_null(no_key boolean, no_subject boolean) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF no_key THEN
    RAISE EXCEPTION 'key is null' USING ERRCODE = 'OB002';
  ELSIF no_subject THEN
    RAISE EXCEPTION 'subject is null' USING ERRCODE = 'OB003';
  END IF;
  RAISE EXCEPTION 'payload is null; the limit is 0 to 67108864 bytes' USING ERRCODE = 'OB005';
END $$;

-- Headers as a client in UTF-8 can read them. Those that it cannot read are the JSON text
-- "unreadable", so that the relay sets one message aside instead of failing with all that it reads.
CREATE FUNCTION {schema}.readable_headers(headers jsonb) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM convert_to(headers::text, 'UTF8');
  RETURN headers::text;
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
  RETURN '"unreadable"';
END $$;

-- The short way for a database in UTF8, which has no unreadable headers.
CREATE FUNCTION {schema}.headers_text(headers jsonb) RETURNS text
LANGUAGE sql STABLE
RETURN CASE
  WHEN getdatabaseencoding() = 'UTF8' THEN headers::text
  ELSE {schema}.readable_headers(headers)
END;
COMMENT ON FUNCTION {schema}.headers_text IS 'For relays and operators: headers as text in UTF-8; "unreadable" when they have no such form.';
COMMENT ON FUNCTION {schema}.check_key IS 'True when this is a valid key; otherwise an error that says why not.';
COMMENT ON FUNCTION {schema}.root_key IS 'The first level of a key, from a name of your own: ":" and "%" in it are written as %3A and %25.';
COMMENT ON FUNCTION {schema}.step_key IS 'The key of one step below this key: KEY:STEP, of letters in lower case, digits, ".", "_" and "-".';
COMMENT ON FUNCTION {schema}.part_key IS 'The key of one of several messages of a step: KEY:#PART, from 0.';
COMMENT ON FUNCTION {schema}.undo_key IS 'The key of the compensation of a step: KEY:undo.';
