-- The inbox as functions, for consumers in any language: register_scope, claim, settle and bury.
-- Tables, locks and fingerprints are those of the crates oncebox-claims and oncebox-inbox:
-- consumers of both kinds may share a scope.

-- Stands for a key in advisory locks, with 64 bits: oncebox_claims::identity::lock. Each field goes
-- in with its length. STABLE, as convert_to() is: a function that is declared IMMUTABLE, and calls
-- one that is not, is never inlined.
CREATE FUNCTION {schema}.inbox_lock(scope text, tenant text, key text) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
RETURN ('x' || encode(substring(sha256(
  int8send(15) || 'oncebox inbox 1'::bytea
  || int8send(octet_length('{name}')) || '{name}'::bytea
  || int8send(octet_length(convert_to(scope, 'UTF8'))) || convert_to(scope, 'UTF8')
  || int8send(octet_length(convert_to(tenant, 'UTF8'))) || convert_to(tenant, 'UTF8')
  || int8send(octet_length(convert_to(key, 'UTF8'))) || convert_to(key, 'UTF8')
) FROM 1 FOR 8), 'hex'))::bit(64)::bigint;

-- Tells the copies of a message apart, in inbox_attempt: a stream that is recreated counts from 1
-- again.
CREATE FUNCTION {schema}.inbox_copy(stream text, stream_sequence bigint, stored_at timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce(stream || ' ' || stream_sequence || ' ' || floor(extract(epoch FROM stored_at) * 1000000)::bigint, '');

-- Names must not be empty, too long or unprintable. An empty tenant is the only one there is.
CREATE FUNCTION {schema}.check_inbox_names(scope text, tenant text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  IF scope IS NULL OR octet_length(scope) NOT BETWEEN 1 AND 255 OR scope ~ '[\u0001-\u001f\u007f-\u009f]' THEN
    RAISE EXCEPTION 'scope % is not 1 to 255 bytes without control characters', coalesce('"' || left(scope, 300) || '"', 'null')
      USING ERRCODE = 'OB011', HINT = 'A scope says who consumes, for example "payment-service:charge".';
  END IF;
  IF tenant IS NULL OR octet_length(tenant) > 255 OR tenant ~ '[\u0001-\u001f\u007f-\u009f]' THEN
    RAISE EXCEPTION 'tenant % is not 0 to 255 bytes without control characters', coalesce('"' || left(tenant, 300) || '"', 'null')
      USING ERRCODE = 'OB011', HINT = 'Leave it out where there is one tenant.';
  END IF;
  RETURN true;
END $$;

-- The longest retention, in seconds: 100 years, as in oncebox-claims. A longer one would reach
-- further back than dates do, and fail every look at the scope's keys, and the sweep of all scopes.
CREATE FUNCTION {schema}.retention_max() RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 100 * 366 * 86400::double precision;

-- Registers a consumer, or an HTTP route, how it claims keys, and how long it keeps them and its
-- dead letters; register.sql of oncebox-claims does the same. Stored settings stay. A consumer of
-- the other mode is refused.
CREATE FUNCTION {schema}.register_scope(
  scope text, retention interval DEFAULT NULL, dead_letter_retention interval DEFAULT NULL, kind text DEFAULT 'consumer',
  mode text DEFAULT 'transaction'
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  keys_seconds double precision := extract(epoch FROM register_scope.retention);
  letters_seconds double precision := extract(epoch FROM coalesce(register_scope.dead_letter_retention, interval '90 days'));
  stored record;
BEGIN
  PERFORM {schema}.check_inbox_names(register_scope.scope, '');
  IF coalesce(register_scope.kind NOT IN ('consumer', 'http'), true) OR coalesce(register_scope.mode NOT IN ('transaction', 'lease'), true) THEN
    RAISE EXCEPTION 'kind "%" is neither "consumer" nor "http", or mode "%" neither "transaction" nor "lease"', register_scope.kind, register_scope.mode
      USING ERRCODE = 'OB011';
  END IF;
  IF keys_seconds NOT BETWEEN 1 AND {schema}.retention_max() OR letters_seconds NOT BETWEEN 1 AND {schema}.retention_max()
     OR register_scope.dead_letter_retention IS NOT NULL AND (keys_seconds IS NULL OR letters_seconds < keys_seconds) THEN
    RAISE EXCEPTION 'retention % and dead_letter_retention % of scope "%" do not fit', register_scope.retention,
      register_scope.dead_letter_retention, register_scope.scope
      USING ERRCODE = 'OB011', HINT = 'Both are 1 second to 100 years. Dead letters are kept as long as keys or longer; keys are kept for ever unless it is said otherwise.';
  END IF;
  letters_seconds := CASE WHEN keys_seconds IS NOT NULL THEN greatest(letters_seconds, keys_seconds) END;
  INSERT INTO {schema}.inbox_scope AS s (scope, retention_seconds, dead_letter_seconds, kind, mode)
  VALUES (register_scope.scope, keys_seconds, letters_seconds, register_scope.kind, register_scope.mode)
  ON CONFLICT ON CONSTRAINT inbox_scope_pkey DO UPDATE
  SET mode = excluded.mode
  WHERE s.mode IS NULL OR s.mode = excluded.mode
  RETURNING s.retention_seconds, s.dead_letter_seconds, s.kind INTO stored;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'scope "%" claims its keys %', register_scope.scope,
      CASE register_scope.mode WHEN 'lease' THEN 'in the transaction of their handlers' ELSE 'under a lease' END
      USING ERRCODE = 'OB010', HINT = 'Use another scope, or stop its processes and call change_inbox_mode().';
  END IF;
  IF stored IS DISTINCT FROM (keys_seconds, letters_seconds, register_scope.kind) THEN
    RAISE WARNING 'scope "%" keeps its stored settings (retention and dead letters in seconds, kind): %', register_scope.scope, stored
      USING HINT = 'An operator changes them with change_scope().';
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.register_scope IS 'Says that a consumer exists, or a route of kind http, and how long it keeps its keys (NULL: for ever) and dead letters (NULL: 90 days, or as long as keys). mode: transaction (claim), or lease (claim_leased).';

-- Whether this transaction has written a visible row with that xmin: it is still in progress then,
-- and rows of other open transactions are not visible. A subtransaction has an id of its own, above
-- the transaction's, with 32 bits of which the row says; below 3 they are those of a frozen row.
CREATE FUNCTION {schema}.is_own(row_xmin xid) RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
  own bigint := pg_current_xact_id_if_assigned()::text::bigint;
  above bigint := (row_xmin::text::bigint - own) & 4294967295;
BEGIN
  IF own IS NULL OR above > 2147483647 OR row_xmin::text::bigint < 3 THEN
    RETURN false;
  END IF;
  RETURN pg_xact_status((own + above)::text::xid8) = 'in progress';
END $$;

-- Answers for a key that could not be claimed. NULL when the claim is to be made again, because the
-- scope was not registered or the row was older than the retention. As stored.sql, expire.sql and
-- dead.sql of oncebox-claims, which say why the locks are right.
CREATE FUNCTION {schema}.look_up_key(
  scope text, tenant text, key text, fingerprint bytea, lock bigint, OUT answer text, OUT outcome bytea
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  registered record;
  stored record;
BEGIN
  SELECT s.mode, s.retention_seconds INTO registered FROM {schema}.inbox_scope AS s WHERE s.scope = look_up_key.scope;
  IF registered.mode IS DISTINCT FROM 'transaction' THEN
    PERFORM {schema}.register_scope(look_up_key.scope);
    RETURN;
  END IF;
  -- The trigger of 0027_edit.sql has kept it from being claimed.
  IF strpos(look_up_key.key, ':oncebox-edit-') > 0 THEN
    SELECT CASE e.status WHEN 'completed' THEN 'replayed' ELSE e.status END, e.outcome
    INTO answer, outcome
    FROM {schema}.ended_before_edit(look_up_key.scope, look_up_key.tenant, look_up_key.key) AS e;
    IF answer IS NOT NULL THEN
      RETURN;
    END IF;
  END IF;
  SELECT i.status, i.fingerprint, i.outcome, {schema}.is_own(i.xmin) AS is_own,
         coalesce(i.created_at < statement_timestamp() - make_interval(secs => registered.retention_seconds), false) AS is_expired
  INTO stored
  FROM {schema}.inbox AS i
  WHERE i.scope = look_up_key.scope AND i.tenant = look_up_key.tenant AND i.key = look_up_key.key;
  IF NOT FOUND THEN
    -- With the lock it can be claimed: its row went, or the scope came, a moment ago.
    answer := CASE WHEN NOT pg_try_advisory_xact_lock(look_up_key.lock) THEN 'in_flight' END;
  ELSIF stored.is_own AND stored.fingerprint = '' THEN
    answer := 'in_flight'; -- this transaction has claimed an edit of it
  ELSIF stored.is_own THEN
    RAISE EXCEPTION 'key "%" of scope "%" is claimed by this transaction already', look_up_key.key, look_up_key.scope
      USING ERRCODE = 'OB010', HINT = 'Claim a key once in a transaction. To give its message up, roll the transaction back first.';
  ELSIF stored.is_expired THEN
    DELETE FROM {schema}.inbox AS i
    WHERE i.scope = look_up_key.scope AND i.tenant = look_up_key.tenant AND i.key = look_up_key.key
      AND i.created_at < statement_timestamp() - make_interval(secs => registered.retention_seconds)
      AND pg_try_advisory_xact_lock(look_up_key.lock);
  ELSIF stored.fingerprint NOT IN ('', look_up_key.fingerprint) THEN
    answer := 'mismatch';
  ELSE
    answer := CASE stored.status WHEN 'completed' THEN 'replayed' ELSE stored.status END;
    outcome := stored.outcome;
  END IF;
  IF stored.status = 'dead' AND NOT stored.is_expired THEN
    PERFORM
    FROM {schema}.inbox AS i
    WHERE i.scope = look_up_key.scope AND i.tenant = look_up_key.tenant AND i.key = look_up_key.key AND i.status = 'dead'
    FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
      answer := 'in_flight';
    END IF;
  END IF;
END $$;

-- A claim that is committed by itself would make its message count as handled. The mark of a
-- transaction that was begun for it is DEFERRABLE, as in claim.sql: outside of a transaction block
-- every statement has the default.
CREATE FUNCTION {schema}.refuse_unmarked() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'a key is claimed in a transaction that was begun with BEGIN DEFERRABLE, and here is none'
    USING ERRCODE = 'OB010', HINT = CASE WHEN current_setting('default_transaction_deferrable') = 'on'
      THEN 'Set default_transaction_deferrable off for this role: it hides the mark.'
      ELSE 'BEGIN DEFERRABLE (or SET TRANSACTION DEFERRABLE first), claim(), the writes of the handler, settle(), COMMIT. Where a driver commits each statement by itself, a claim would be lost.' END;
END $$;

-- Inserts the row of a key, or answers for it. As claim.sql of oncebox-claims: only the session
-- that has the advisory lock inserts the key, and the lock is taken before the insertion, which
-- sees every row that was committed under an earlier holder. claim_keys() does it for many keys:
-- with arrays of one a claim would cost a fifth more.
CREATE FUNCTION {schema}.claim_key(
  scope text, tenant text, key text, fingerprint bytea, message_id bigint, status text, ending bytea,
  OUT answer text, OUT outcome bytea
) LANGUAGE plpgsql AS $$
DECLARE
  lock bigint := {schema}.inbox_lock(claim_key.scope, claim_key.tenant, claim_key.key);
BEGIN
  FOR attempt IN 1 .. 3 LOOP
    INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status, outcome)
    SELECT s.scope, claim_key.tenant, claim_key.key, claim_key.fingerprint, claim_key.message_id, claim_key.status, claim_key.ending
    FROM {schema}.inbox_scope AS s
    WHERE s.scope = claim_key.scope
      AND s.mode = 'transaction'
      AND pg_try_advisory_xact_lock(lock)
    ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING;
    IF FOUND THEN
      answer := 'new';
      RETURN;
    END IF;
    SELECT l.answer, l.outcome INTO answer, outcome
    FROM {schema}.look_up_key(claim_key.scope, claim_key.tenant, claim_key.key, claim_key.fingerprint, lock) AS l;
    IF answer IS NOT NULL THEN
      RETURN;
    END IF;
  END LOOP;
  -- Others register the scope, or replace the row, at this moment.
  answer := 'in_flight';
END $$;

-- Claims a key in the transaction that the handler writes through. A payload may have any size,
-- since its stream has taken it.
CREATE FUNCTION {schema}.claim(
  scope text, key text, payload bytea, tenant text DEFAULT '', message_id bigint DEFAULT NULL,
  OUT answer text, OUT outcome json, OUT reason text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  claimed record;
BEGIN
  IF current_setting('transaction_deferrable') = current_setting('default_transaction_deferrable') THEN
    PERFORM {schema}.refuse_unmarked();
  END IF;
  IF claim.key IS NULL OR claim.payload IS NULL THEN
    PERFORM {schema}.refuse_null(claim.key IS NULL, false);
  END IF;
  IF {schema}.check_inbox_names(claim.scope, claim.tenant)
     AND {schema}.check_key(claim.key) THEN
    claimed := {schema}.claim_key(claim.scope, claim.tenant, claim.key, {schema}.inbox_fingerprint(claim.payload),
                                  claim.message_id, 'completed', NULL);
  END IF;
  answer := claimed.answer;
  IF answer = 'dead' THEN
    reason := convert_from(claimed.outcome, 'UTF8');
  ELSE
    outcome := convert_from(claimed.outcome, 'UTF8')::json;
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.claim IS 'Claims a key in this transaction, begun with BEGIN DEFERRABLE: new (handle the message), replayed or rejected (a copy, with its outcome), dead (given up, with the reason), in_flight (another transaction works on it: later), mismatch (the key of another payload: bury it).';

-- Stores how a key ended, if this transaction holds its claim: a handler may have rolled it back.
-- A row that stays as the claim has stored it is only read.
CREATE FUNCTION {schema}.settle_key(scope text, tenant text, key text, status text, outcome bytea) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  IF settle_key.outcome IS NULL AND settle_key.status = 'completed' THEN
    PERFORM
    FROM {schema}.inbox AS i
    WHERE i.scope = settle_key.scope AND i.tenant = settle_key.tenant AND i.key = settle_key.key
      AND i.status = 'completed' AND i.outcome IS NULL AND (i.xmin = pg_current_xact_id()::xid OR {schema}.is_own(i.xmin));
  ELSE
    UPDATE {schema}.inbox AS i
    SET status = settle_key.status, outcome = settle_key.outcome
    WHERE i.scope = settle_key.scope AND i.tenant = settle_key.tenant AND i.key = settle_key.key
      AND i.status = 'completed' AND i.outcome IS NULL AND (i.xmin = pg_current_xact_id()::xid OR {schema}.is_own(i.xmin));
  END IF;
  RETURN FOUND;
END $$;

CREATE FUNCTION {schema}.settle(
  scope text, key text, outcome json DEFAULT NULL, tenant text DEFAULT '', status text DEFAULT 'completed'
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stored bytea;
BEGIN
  IF settle.status IS NULL OR settle.status NOT IN ('completed', 'rejected') THEN
    RAISE EXCEPTION 'status % is neither "completed" nor "rejected"', coalesce('"' || left(settle.status, 300) || '"', 'null')
      USING ERRCODE = 'OB011', HINT = 'A message that is given up is rolled back, then buried: bury().';
  END IF;
  IF json_typeof(settle.outcome) <> 'null' THEN
    stored := convert_to(settle.outcome::text, 'UTF8');
    IF octet_length(stored) > 1048576 THEN
      RAISE EXCEPTION 'outcome is % bytes long; the limit is 1048576 bytes (1 MiB)', octet_length(stored)
        USING ERRCODE = 'OB011', HINT = 'Store large replies in a table of your own, and settle with a reference.';
    END IF;
  END IF;
  IF NOT {schema}.settle_key(settle.scope, settle.tenant, settle.key, settle.status, stored) THEN
    RAISE EXCEPTION 'key % of scope % is not claimed by this transaction, or settled already',
      coalesce('"' || left(settle.key, 300) || '"', 'null'), coalesce('"' || left(settle.scope, 300) || '"', 'null')
      USING ERRCODE = 'OB010', HINT = 'settle() follows once on a claim() that answered "new", in the same transaction and for the same tenant.';
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.settle IS 'Stores how a key ended that this transaction has claimed; its copies are answered with the outcome.';

-- Whether a payload came from the Object Store, which keeps it; a retry fetches it.
CREATE FUNCTION {schema}.is_in_store(headers jsonb, payload bytea) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN (
  SELECT coalesce(bool_or(lower(h.name) = 'oncebox-object-digest'
                          AND h.text = 'SHA-256=' || translate(encode(sha256(payload), 'base64'), '+/', '-_')), false)
  FROM jsonb_each_text(headers) AS h (name, text)
);

-- As record.sql of oncebox-claims.
CREATE FUNCTION {schema}.record_dead_letter(
  scope text, tenant text, key text, subject text, headers jsonb, payload bytea, stream text, stream_sequence bigint,
  stored_at timestamptz, deliveries bigint, reason text
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO {schema}.dead_letter
    (scope, tenant, key, subject, headers, payload, stream, stream_sequence, stored_at, deliveries, reason, fingerprint)
  SELECT $1, $2, $3, $4, $5, CASE WHEN s.is_in_store THEN '' ELSE $6 END, $7, $8, $9, $10, $11,
         CASE WHEN s.is_in_store THEN {schema}.inbox_fingerprint($6) END
  FROM {schema}.is_in_store($5, $6) AS s (is_in_store)
  ON CONFLICT ON CONSTRAINT dead_letter_once DO NOTHING
$$;

-- Forgets the snoozes and the attempts of a key that is given up.
CREATE FUNCTION {schema}.forget_tries(scope text, tenant text, key text) RETURNS void
LANGUAGE sql AS $$
  DELETE FROM {schema}.inbox_snooze AS p WHERE p.scope = $1 AND p.tenant = $2 AND p.key = $3;
  DELETE FROM {schema}.inbox_attempt AS a WHERE a.scope = $1 AND a.tenant = $2 AND a.key = $3
$$;

-- Gives a message up, after the rollback of its handler: its key, and its dead letter. A copy that
-- was committed meanwhile, or is at work, decides instead, and nothing is recorded. A claim that
-- the handler committed by itself before it failed is taken back: a copy of the message would be
-- answered as handled.
CREATE FUNCTION {schema}.bury(
  scope text, key text, payload bytea, reason text, subject text, headers jsonb DEFAULT '{}', tenant text DEFAULT '',
  message_id bigint DEFAULT NULL, stream text DEFAULT NULL, stream_sequence bigint DEFAULT NULL,
  stored_at timestamptz DEFAULT NULL, deliveries bigint DEFAULT 1, committed_by xid8 DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fingerprint bytea;
  kept text := {schema}.bounded_reason(bury.reason);
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
  PERFORM {schema}.check_inbox_names(bury.scope, bury.tenant), {schema}.check_key(bury.key), {schema}.check_stored_at(bury.stored_at);
  IF bury.key IS NOT NULL THEN
    fingerprint := {schema}.inbox_fingerprint(bury.payload);
    IF bury.committed_by IS NOT NULL THEN
      DELETE FROM {schema}.inbox AS i
      WHERE i.scope = bury.scope AND i.tenant = bury.tenant AND i.key = bury.key AND i.xmin = bury.committed_by::xid;
    END IF;
    answer := {schema}.look_up_leased(bury.scope, bury.tenant, bury.key, fingerprint);
    IF answer IS NULL THEN
      SELECT c.answer INTO answer
      FROM {schema}.claim_key(bury.scope, bury.tenant, bury.key, fingerprint, bury.message_id, 'dead', convert_to(kept, 'UTF8')) AS c;
    END IF;
    IF answer = 'new' THEN
      PERFORM {schema}.forget_tries(bury.scope, bury.tenant, bury.key);
    END IF;
  END IF;
  IF bury.key IS NULL OR answer IN ('new', 'mismatch') THEN
    PERFORM {schema}.record_dead_letter(bury.scope, bury.tenant, bury.key, bury.subject, coalesce(bury.headers, '{}'),
      bury.payload, bury.stream, bury.stream_sequence, bury.stored_at, coalesce(bury.deliveries, 1), kept);
  END IF;
  RETURN CASE WHEN bury.key IS NULL OR answer = 'new' THEN 'dead' ELSE answer END;
END $$;
COMMENT ON FUNCTION {schema}.bury IS 'Gives a message up in a transaction of its own, after its rollback, and records it as a dead letter. Returns the answer to its copies: dead; or the state that forbids it: replayed, rejected, in_flight; or mismatch. A message without a valid key has key NULL. committed_by: the id of the transaction that claimed the key, when the handler has committed it by itself and then failed; its claim is taken back.';
