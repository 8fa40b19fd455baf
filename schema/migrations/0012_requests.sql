-- Requests with an Idempotency-Key as functions, for services in any language: register_scope() for
-- the kind http, claim_request, settle_request. Keys, fingerprints and stored responses are those
-- of the crate oncebox-http: services of both kinds may share a scope, and answer each other's
-- requests.

-- A field of a fingerprint goes in with its length.
CREATE FUNCTION {schema}.sized(field bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN int8send(octet_length(field)) || field;

-- A content type as it counts in a fingerprint: in lower case, without the charset UTF-8, and apart
-- from it the boundary of a multipart body, which clients make anew for each attempt.
CREATE FUNCTION {schema}.media_type(content_type text, OUT kind text, OUT boundary text)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  part text;
  name text;
  value text;
BEGIN
  IF content_type ~ '[^\u0009\u0020-\u007e]' THEN
    content_type := '';
  END IF;
  kind := lower(btrim(split_part(content_type, ';', 1), E' \t'));
  FOREACH part IN ARRAY (string_to_array(content_type, ';'))[2:] LOOP
    part := btrim(part, E' \t');
    CONTINUE WHEN part = '';
    name := lower(btrim(split_part(part, '=', 1), E' \t'));
    value := btrim(btrim(substr(part, length(split_part(part, '=', 1)) + 2), E' \t'), '"');
    IF name = 'boundary' AND kind LIKE 'multipart/%' AND length(value) BETWEEN 1 AND 70 THEN
      boundary := value;
    ELSIF name <> 'charset' OR lower(value) <> 'utf-8' THEN
      kind := concat(kind, ';', name, '=', lower(value));
    END IF;
  END LOOP;
END $$;

-- Tells a repeated request from another one with the same key: `fingerprint` in oncebox_http.
-- Credentials are an array of pairs, [["authorization", "Bearer .."]], each a header's name and
-- value; their characters are the bytes that were sent. Another shape is refused: credentials that
-- do not count would let one user have the response of another. A content type that is NULL says
-- that the service itself has chosen the content.
CREATE FUNCTION {schema}.request_fingerprint(
  method text, path text, query text, credentials jsonb, content_type text, content bytea
) RETURNS bytea
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fields bytea := {schema}.sized('oncebox http 1') || {schema}.sized(convert_to(method, 'UTF8'))
    || {schema}.sized(convert_to(path, 'LATIN1'));
  media record;
BEGIN
  IF jsonb_typeof(credentials) IS DISTINCT FROM 'array' OR EXISTS (
    SELECT
    FROM jsonb_array_elements(CASE jsonb_typeof(credentials) WHEN 'array' THEN credentials END) AS c (pair)
    WHERE CASE jsonb_typeof(c.pair)
      WHEN 'array' THEN jsonb_array_length(c.pair) <> 2
        OR jsonb_typeof(c.pair -> 0) <> 'string' OR jsonb_typeof(c.pair -> 1) <> 'string'
      ELSE true
    END
  ) THEN
    RAISE EXCEPTION 'credentials must be an array of pairs of a header''s name and value' USING ERRCODE = 'OB011',
      HINT = 'For example [["authorization", "Bearer .."]]; [] where a request has none.';
  END IF;
  -- Parameters in the order of their names; those of one name keep theirs.
  SELECT fields || {schema}.sized(convert_to(coalesce(
           string_agg(p.text, '&' ORDER BY split_part(p.text, '=', 1) COLLATE "C", p.n), ''), 'LATIN1'))
  INTO fields
  FROM unnest(string_to_array(query, '&')) WITH ORDINALITY AS p (text, n)
  WHERE p.text <> '';
  SELECT fields || coalesce(string_agg(
           {schema}.sized('credential') || {schema}.sized(convert_to(c.pair ->> 0, 'UTF8'))
           || {schema}.sized(convert_to(c.pair ->> 1, 'LATIN1')), ''::bytea ORDER BY c.n), ''::bytea)
  INTO fields
  FROM jsonb_array_elements(credentials) WITH ORDINALITY AS c (pair, n);
  IF content_type IS NULL THEN
    RETURN sha256(fields || {schema}.sized(content));
  END IF;
  SELECT m.kind, m.boundary INTO media FROM {schema}.media_type(content_type) AS m;
  fields := fields || {schema}.sized(convert_to(media.kind, 'UTF8'));
  IF media.boundary IS NULL OR content = '' THEN
    RETURN sha256(fields || {schema}.sized(content));
  END IF;
  -- Split as text, in time that grows with the length. A delimiter begins with "--", which is in no
  -- escape, so that it is found where the bytes have it and nowhere else.
  SELECT fields || string_agg({schema}.sized(decode(s.text, 'escape')), ''::bytea ORDER BY s.n)
  INTO fields
  FROM string_to_table(encode(content, 'escape'), encode(convert_to('--' || media.boundary, 'UTF8'), 'escape'))
    WITH ORDINALITY AS s (text, n);
  RETURN sha256(fields);
END $$;
COMMENT ON FUNCTION {schema}.request_fingerprint IS 'Tells a repeated request from another one with the same key. Credentials are a JSON array of pairs of a header''s name and value; a content type of NULL says that the service itself has chosen the content.';
COMMENT ON FUNCTION {schema}.media_type IS 'A part of request_fingerprint(): a content type as it counts there.';
COMMENT ON FUNCTION {schema}.sized IS 'A part of request_fingerprint(): a field with its length.';

-- The root of a tenant's keys, by which its requests are claimed and their messages are named:
-- `root` in oncebox_http.
CREATE FUNCTION {schema}.request_key(tenant text, client_key text) RETURNS text
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  root text := {schema}.root_key(client_key);
  whole text;
BEGIN
  IF tenant = '' THEN
    RETURN root;
  END IF;
  SELECT string_agg(CASE WHEN b.hex ~ '^(3[0-9]|[46][1-9a-f]|[57][0-9a]|2d|2e|5f)$' THEN convert_from(decode(b.hex, 'hex'), 'UTF8')
                         ELSE '%' || upper(b.hex) END, '' ORDER BY b.n) || '/' || root
  INTO whole
  FROM (
    SELECT m[1] AS hex, n
    FROM regexp_matches(encode(convert_to(tenant, 'UTF8'), 'hex'), '..', 'g') WITH ORDINALITY AS r (m, n)
  ) AS b;
  IF octet_length(whole) <= 128 AND octet_length(replace(replace(whole, '%', '%25'), ':', '%3A')) <= 255 THEN
    RETURN {schema}.root_key(whole);
  END IF;
  RETURN encode(sha256(int8send(octet_length(convert_to(tenant, 'UTF8'))) || convert_to(tenant || root, 'UTF8')), 'hex');
END $$;

-- A response as oncebox-http stores it; its stored_response.rs draws the form. Headers are pairs of
-- name and value; a body that is NULL is not kept.
CREATE FUNCTION {schema}.encode_response(status integer, headers jsonb, body bytea) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN '\x01'::bytea || int2send(status::smallint) || CASE WHEN body IS NULL THEN '\x00'::bytea ELSE '\x01'::bytea END
  || int2send(jsonb_array_length(headers)::smallint)
  || coalesce((
       SELECT string_agg(int2send(octet_length(h.pair ->> 0)::smallint) || convert_to(h.pair ->> 0, 'UTF8')
                         || int4send(length(h.pair ->> 1)) || convert_to(h.pair ->> 1, 'LATIN1'), ''::bytea ORDER BY h.n)
       FROM jsonb_array_elements(headers) WITH ORDINALITY AS h (pair, n)
     ), ''::bytea)
  || coalesce(body, ''::bytea);

-- Its parts. Without a status the layer has not written it: a handler has committed by itself.
CREATE FUNCTION {schema}.decode_response(
  stored bytea, OUT status integer, OUT headers jsonb, OUT body bytea
) LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  place integer := 7;
  size integer;
  name text;
BEGIN
  IF stored IS NULL OR octet_length(stored) < 6 OR substr(stored, 1, 1) <> '\x01' THEN
    RETURN;
  END IF;
  headers := '[]';
  FOR header IN 1 .. get_byte(stored, 4) * 256 + get_byte(stored, 5) LOOP
    size := get_byte(stored, place - 1) * 256 + get_byte(stored, place);
    name := convert_from(substr(stored, place + 2, size), 'UTF8');
    place := place + 2 + size;
    size := ('x' || encode(substr(stored, place, 4), 'hex'))::bit(32)::integer;
    headers := headers || jsonb_build_array(jsonb_build_array(name, convert_from(substr(stored, place + 4, size), 'LATIN1')));
    place := place + 4 + size;
  END LOOP;
  size := octet_length(stored) + 1 - place;
  IF size < 0 OR get_byte(stored, 3) > 1 OR get_byte(stored, 3) = 0 AND size > 0 THEN
    RETURN;
  END IF;
  status := get_byte(stored, 1) * 256 + get_byte(stored, 2);
  body := CASE get_byte(stored, 3) WHEN 1 THEN substr(stored, place) END;
EXCEPTION WHEN array_subscript_error OR character_not_in_repertoire OR untranslatable_character OR invalid_text_representation
    OR substring_error OR numeric_value_out_of_range THEN
  status := NULL;
END $$;

-- Claims a request's key in the transaction that its handler writes through, as claim().
CREATE FUNCTION {schema}.claim_request(
  scope text, tenant text, client_key text, fingerprint bytea,
  OUT answer text, OUT key text, OUT status integer, OUT headers jsonb, OUT body bytea
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  claimed record;
BEGIN
  IF current_setting('transaction_deferrable') = current_setting('default_transaction_deferrable') THEN
    PERFORM {schema}.refuse_unmarked();
  END IF;
  PERFORM {schema}.check_inbox_names(claim_request.scope, claim_request.tenant);
  IF octet_length(claim_request.fingerprint) IS DISTINCT FROM 32 THEN
    RAISE EXCEPTION 'a fingerprint has 32 bytes, not %', octet_length(claim_request.fingerprint) USING ERRCODE = 'OB011';
  END IF;
  key := {schema}.request_key(claim_request.tenant, claim_request.client_key);
  claimed := {schema}.claim_key(claim_request.scope, claim_request.tenant, key, claim_request.fingerprint, NULL, 'completed', NULL);
  answer := claimed.answer;
  IF answer IN ('replayed', 'rejected', 'dead') THEN
    answer := 'replayed';
    SELECT r.status, r.headers, r.body INTO status, headers, body FROM {schema}.decode_response(claimed.outcome) AS r;
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.claim_request IS 'Claims a request in this transaction, begun with BEGIN DEFERRABLE: new (handle it), replayed (with the response; without a status it may be done in part, without a body that was not kept), in_flight (another one works on it), mismatch (the key of another request). The client''s key becomes `key`, from which keys of messages are derived.';

CREATE FUNCTION {schema}.settle_request(
  scope text, tenant text, key text, is_rejected boolean, status integer, headers jsonb, body bytea
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stored bytea := {schema}.encode_response(settle_request.status, settle_request.headers, settle_request.body);
BEGIN
  IF octet_length(stored) > 1048576 THEN
    stored := {schema}.encode_response(settle_request.status, '[]', NULL);
  END IF;
  IF NOT {schema}.settle_key(settle_request.scope, settle_request.tenant, settle_request.key,
                             CASE WHEN settle_request.is_rejected THEN 'rejected' ELSE 'completed' END, stored) THEN
    RAISE EXCEPTION 'the request is not claimed by this transaction, or settled already'
      USING ERRCODE = 'OB010', HINT = 'settle_request() follows once on a claim_request() that answered "new", in the same transaction.';
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.settle_request IS 'Stores the response of a request that this transaction has claimed. headers: an array of pairs, [["content-type", "text/plain"]], whose characters are the bytes to be sent. A body that is NULL is not kept.';
