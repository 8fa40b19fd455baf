-- Headers that arrive as they were enqueued. NATS drops blanks at both ends of a value. A database
-- whose encoding is not UTF8 may hold bytes that have no form in UTF-8, which relay and NATS speak.

-- Refuses both. An error names the header, never its value. STABLE, so that it sees a delayed message
-- which the statement that calls it moves into the log: that may have been enqueued before this check.
CREATE FUNCTION {schema}.check_wire_headers(headers jsonb, key text) RETURNS boolean
LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
  header record;
  problem text;
BEGIN
  FOR header IN SELECT * FROM jsonb_each_text(headers) AS h (name, value) LOOP
    IF header.value COLLATE "C" ~ '^[ \t]|[ \t]$' THEN
      problem := 'begins or ends with a blank, which NATS would drop';
    ELSIF getdatabaseencoding() <> 'UTF8' THEN
      BEGIN
        PERFORM convert_to(header.value, 'UTF8');
      EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
        problem := 'has a byte that cannot be converted to UTF-8';
      END;
    END IF;
    IF problem IS NOT NULL AND NOT EXISTS (
      SELECT FROM {schema}.delayed AS d WHERE d.key = check_wire_headers.key
    ) THEN
      RAISE EXCEPTION 'value of header "%" %', header.name, problem
        USING ERRCODE = 'OB004', HINT = 'Trim the value, or encode it in ASCII.';
    END IF;
  END LOOP;
  RETURN true;
END $$;

-- NOT VALID: rows that are here already stay, and a dump restores its rows before these constraints.
ALTER TABLE {schema}.message
  ADD CONSTRAINT message_headers_wire CHECK (headers = '{}' OR {schema}.check_wire_headers(headers, key)) NOT VALID;
ALTER TABLE {schema}.delayed
  ADD CONSTRAINT delayed_headers_wire CHECK (headers = '{}' OR {schema}.check_wire_headers(headers, key)) NOT VALID;

-- Headers as a client in UTF-8 can read them. Those that it cannot are the JSON text "unreadable", so
-- that the relay sets the message aside instead of failing with all that it reads.
CREATE FUNCTION {schema}.readable_headers(headers jsonb) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM convert_to(headers::text, 'UTF8');
  RETURN headers::text;
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
  RETURN '"unreadable"';
END $$;
CREATE FUNCTION {schema}.headers_text(headers jsonb) RETURNS text
LANGUAGE sql STABLE
RETURN CASE
  WHEN getdatabaseencoding() = 'UTF8' THEN headers::text
  ELSE {schema}.readable_headers(headers)
END;
COMMENT ON FUNCTION {schema}.headers_text IS 'For relays and operators: headers as text in UTF-8; "unreadable" when they have no such form.';
