-- Expected arrival: messages that should have had an effect in an inbox by now, and have not.
-- Nothing else notices a consumer that was never started: its messages reach their stream, and wait
-- there.
--
-- An expectation is judged by transactions, not by messages. A mark says that all transactions
-- below `xact` had ended at `marked_at`; when a mark is as old as the expectation allows, the
-- messages of the transactions between it and the oldest mark must be in the inbox. So each message
-- is looked at once, also one whose transaction ended late, and its time runs from its commit on.
-- One that is missing is kept in `unhandled`, and looked for again until it has come.

CREATE TABLE {schema}.expectation (
  id             bigint GENERATED ALWAYS AS IDENTITY,
  subject        text COLLATE "C" NOT NULL,
  scope          text COLLATE "C" NOT NULL,
  within_seconds double precision NOT NULL,
  inbox_database text,
  looked_at      timestamptz,
  unhandled      bigint NOT NULL DEFAULT 0,
  oldest_at      timestamptz,
  oldest_key     text COLLATE "C",
  CONSTRAINT expectation_pkey PRIMARY KEY (id),
  CONSTRAINT expectation_once UNIQUE (subject, scope),
  CONSTRAINT expectation_within CHECK (within_seconds >= 1 AND within_seconds <= 31622400),
  CONSTRAINT expectation_sizes CHECK (octet_length(subject) BETWEEN 1 AND 1000 AND octet_length(scope) BETWEEN 1 AND 255),
  CONSTRAINT expectation_database_size CHECK (octet_length(inbox_database) BETWEEN 1 AND 255)
);
COMMENT ON TABLE {schema}.expectation IS 'Messages with such a subject must be in that inbox within this time after their commit.';
COMMENT ON COLUMN {schema}.expectation.subject IS 'A pattern: * stands for one token, a last > for one or more.';
COMMENT ON COLUMN {schema}.expectation.inbox_database IS 'The database of the inbox, by its name in the file of the relay''s databases; NULL is this one.';
COMMENT ON COLUMN {schema}.expectation.unhandled IS 'How many rows of unhandled it has; oldest_at and oldest_key are of the oldest.';
COMMENT ON COLUMN {schema}.expectation.looked_at IS 'When a relay last looked; NULL when none has.';

CREATE TABLE {schema}.expectation_mark (
  expectation       bigint NOT NULL REFERENCES {schema}.expectation ON DELETE CASCADE,
  xact              xid8 NOT NULL,
  system_identifier bigint NOT NULL,
  marked_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT expectation_mark_pkey PRIMARY KEY (expectation, xact)
);
COMMENT ON TABLE {schema}.expectation_mark IS 'All transactions below xact had ended at marked_at. The messages of those below the oldest mark have been looked at.';

CREATE TABLE {schema}.unhandled (
  expectation bigint NOT NULL REFERENCES {schema}.expectation ON DELETE CASCADE,
  lane        smallint NOT NULL,
  id          bigint NOT NULL,
  key         text COLLATE "C" NOT NULL,
  subject     text NOT NULL,
  created_at  timestamptz NOT NULL,
  CONSTRAINT unhandled_pkey PRIMARY KEY (expectation, lane, id)
);
COMMENT ON TABLE {schema}.unhandled IS 'Messages that were not in their inbox in time, and are not now: the first 10,000 of each expectation.';

-- How many messages of an expectation are kept as unhandled.
CREATE FUNCTION {schema}.unhandled_max() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 10000;

-- The regular expression of a pattern of subjects.
CREATE FUNCTION {schema}.subject_shape(pattern text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (
  SELECT '^' || string_agg(
    CASE t.token WHEN '*' THEN '[^.]+' WHEN '>' THEN '.+' ELSE regexp_replace(t.token, '[^[:alnum:]_-]', '\\\&', 'g') END,
    '\.' ORDER BY t.place) || '$'
  FROM string_to_table(pattern, '.') WITH ORDINALITY AS t (token, place)
);

-- A time as users write it: 15m, 1m 30s, 7d.
CREATE FUNCTION {schema}.time_text(seconds double precision) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN coalesce(nullif(concat_ws(' ',
  nullif(round($1)::bigint / 86400, 0) || 'd',
  nullif(round($1)::bigint % 86400 / 3600, 0) || 'h',
  nullif(round($1)::bigint % 3600 / 60, 0) || 'm',
  nullif(round($1)::bigint % 60, 0) || 's'), ''), '0s');

-- Refuses an unknown inbox, and one that keeps its keys for too short a time; in the database of
-- the inbox, whose place is said in the error.
CREATE FUNCTION {schema}.check_expected_inbox(scope text, within_seconds double precision, is_unseen boolean, place text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  inbox {schema}.inbox_scope;
  known text;
BEGIN
  SELECT s.* INTO inbox FROM {schema}.inbox_scope AS s WHERE s.scope = check_expected_inbox.scope AND s.kind = 'consumer';
  IF inbox.scope IS NULL AND NOT is_unseen THEN
    SELECT string_agg(k.scope, ', ' ORDER BY k.scope) INTO known
    FROM (SELECT s.scope FROM {schema}.inbox_scope AS s WHERE s.kind = 'consumer' ORDER BY s.scope LIMIT 10) AS k;
    RAISE EXCEPTION 'no consumer % has registered in %, which has %', check_expected_inbox.scope, place, coalesce(known, 'none')
      USING ERRCODE = 'OB011',
        HINT = 'Correct --handled-by, name the database of the inbox by --in, or say by --unseen that the consumer has never been started.';
  END IF;
  IF within_seconds >= inbox.retention_seconds THEN
    RAISE EXCEPTION 'inbox % keeps its keys for %, so it has forgotten them when they are looked for after %',
      check_expected_inbox.scope, {schema}.time_text(inbox.retention_seconds), {schema}.time_text(within_seconds)
      USING ERRCODE = 'OB011', HINT = 'Give a shorter --within, or have the inbox keep its keys for longer (`oncebox inbox scope change`).';
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.check_expected_inbox IS 'For operators: whether an inbox of this database can be expected to have keys within a number of seconds after the commit of their messages.';

CREATE FUNCTION {schema}.expect(
  subject text, scope text, within_seconds double precision, inbox_database text, is_unseen boolean, operator text, note text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kept double precision := (SELECT min(r.retention_seconds) FROM {schema}.relay AS r);
BEGIN
  IF expect.subject !~ '^(>|[^.[:space:]]+([.][^.[:space:]]+)*)$' OR expect.subject ~ '>.' THEN
    RAISE EXCEPTION 'subject % is no pattern', expect.subject
      USING ERRCODE = 'OB011', HINT = 'Write tokens with dots between them; * stands for one token, a last > for one or more.';
  END IF;
  IF within_seconds >= kept THEN
    RAISE EXCEPTION 'relays keep messages for %, so they are gone when they are looked for after %', {schema}.time_text(kept), {schema}.time_text(within_seconds)
      USING ERRCODE = 'OB011', HINT = 'Give a shorter --within, or let relays keep messages for longer (--retention).';
  END IF;
  IF inbox_database IS NULL THEN
    PERFORM {schema}.check_expected_inbox(expect.scope, within_seconds, is_unseen, 'this database');
  END IF;
  IF (SELECT count(*) FROM {schema}.expectation AS e) >= 100 THEN
    RAISE EXCEPTION 'there are 100 expectations already' USING ERRCODE = 'OB011', HINT = 'Use a pattern for several subjects, or end one: `oncebox expect remove`.';
  END IF;
  DELETE FROM {schema}.expectation AS e WHERE e.subject = expect.subject AND e.scope = expect.scope;
  INSERT INTO {schema}.expectation (subject, scope, within_seconds, inbox_database)
  VALUES (expect.subject, expect.scope, expect.within_seconds, expect.inbox_database);
  INSERT INTO {schema}.audit (operator, note, action, scope, reason)
  VALUES (expect.operator, expect.note, 'expect', expect.scope, format('%s within %s', expect.subject, {schema}.time_text(expect.within_seconds)));
END $$;
COMMENT ON FUNCTION {schema}.expect IS 'For operators: messages with such a subject must be in that inbox within a number of seconds after their commit. Takes the place of an earlier one for both.';

CREATE FUNCTION {schema}.expect_no_more(subject text, scope text, operator text, note text) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH gone AS (
    DELETE FROM {schema}.expectation AS e
    WHERE e.subject = $1 AND e.scope = $2
    RETURNING e.subject, e.scope
  )
  INSERT INTO {schema}.audit (operator, note, action, scope, reason)
  SELECT $3, $4, 'expect-no-more', g.scope, g.subject
  FROM gone AS g
  RETURNING id
$$;
COMMENT ON FUNCTION {schema}.expect_no_more IS 'For operators: ends an expectation. No row when there was none.';

-- The transactions to look at: from first_xact up to below end_xact; both are NULL when only the
-- unhandled messages are to be looked at again. Makes marks: a minute apart, or a 64th of the time
-- allowed. One look takes 20,000 transactions, and fewer where these have more than 50,000
-- messages.
CREATE FUNCTION {schema}.expectations_due()
RETURNS TABLE (expectation bigint, scope text, inbox_database text, first_xact xid8, end_xact xid8, is_behind boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  here bigint := (SELECT c.system_identifier FROM pg_control_system() AS c);
  e {schema}.expectation;
  due xid8;
  span bigint;
BEGIN
  FOR e IN
    SELECT x.*
    FROM {schema}.expectation AS x
    WHERE x.looked_at IS NULL OR x.looked_at > clock_timestamp()
      OR x.looked_at <= clock_timestamp() - make_interval(secs => least(x.within_seconds / 4, 60))
    ORDER BY x.id
    FOR UPDATE SKIP LOCKED
  LOOP
    -- A restored dump has the marks of another cluster, and the clock may have been ahead.
    DELETE FROM {schema}.expectation_mark AS m WHERE m.expectation = e.id AND m.system_identifier <> here;
    UPDATE {schema}.expectation_mark AS m SET marked_at = clock_timestamp()
    WHERE m.expectation = e.id AND m.marked_at > clock_timestamp();
    IF NOT EXISTS (
      SELECT
      FROM {schema}.expectation_mark AS m
      WHERE m.expectation = e.id
        AND m.marked_at > clock_timestamp() - make_interval(secs => least(greatest(e.within_seconds / 64, 1), 3600))
    ) THEN
      INSERT INTO {schema}.expectation_mark (expectation, xact, system_identifier)
      VALUES (e.id, pg_snapshot_xmin(pg_current_snapshot()), here)
      ON CONFLICT ON CONSTRAINT expectation_mark_pkey DO NOTHING;
    END IF;
    first_xact := (SELECT min(m.xact) FROM {schema}.expectation_mark AS m WHERE m.expectation = e.id);
    due := (
      SELECT max(m.xact)
      FROM {schema}.expectation_mark AS m
      WHERE m.expectation = e.id AND m.marked_at <= clock_timestamp() - make_interval(secs => e.within_seconds)
    );
    -- Nothing is due as long as no mark is old enough.
    span := coalesce(due::text::bigint - first_xact::text::bigint, 0);
    is_behind := span > 20000;
    span := least(span, 20000);
    end_xact := (first_xact::text::bigint + span)::text::xid8;
    WHILE span > 1 AND (
      SELECT count(*) FROM (SELECT FROM {schema}.expected_messages(e.id, first_xact, end_xact) LIMIT 50001) AS m
    ) > 50000 LOOP
      span := span / 2;
      is_behind := true;
      end_xact := (first_xact::text::bigint + span)::text::xid8;
    END LOOP;
    IF span = 0 THEN
      first_xact := NULL;
      end_xact := NULL;
    END IF;
    UPDATE {schema}.expectation AS x SET looked_at = CASE WHEN is_behind THEN x.looked_at ELSE clock_timestamp() END
    WHERE x.id = e.id;
    expectation := e.id;
    scope := e.scope;
    inbox_database := e.inbox_database;
    RETURN NEXT;
  END LOOP;
END $$;
COMMENT ON FUNCTION {schema}.expectations_due IS 'For relays: which expectations are to be looked at, and which transactions have become due.';

-- The messages of these transactions that an expectation takes, but for those that an operator has
-- discarded, and those that are unhandled already.
CREATE FUNCTION {schema}.expected_messages(expectation bigint, first_xact xid8, end_xact xid8)
RETURNS TABLE (lane smallint, id bigint, key text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT m.lane, m.id, m.key
  FROM {schema}.expectation AS e
  CROSS JOIN {schema}.lane AS l
  CROSS JOIN LATERAL (
    SELECT m.lane, m.id, m.key, m.subject
    FROM {schema}.log AS m
    WHERE m.lane = l.lane AND m.xact >= $2 AND m.xact < $3
    OFFSET 0
  ) AS m
  WHERE e.id = $1
    AND m.subject ~ {schema}.subject_shape(e.subject)
    AND NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = m.lane AND d.id = m.id)
    AND NOT EXISTS (SELECT FROM {schema}.unhandled AS u WHERE u.expectation = e.id AND u.lane = m.lane AND u.id = m.id)
  UNION ALL
  SELECT u.lane, u.id, u.key
  FROM {schema}.unhandled AS u
  WHERE u.expectation = $1
$$;
COMMENT ON FUNCTION {schema}.expected_messages IS 'For relays: the messages that must be in an inbox.';

-- Which of these keys an inbox of this database has, of any of its first 64 tenants.
CREATE FUNCTION {schema}.arrived_keys(scope text, keys text[]) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  tenants text[] := ARRAY(
    WITH RECURSIVE found AS (
      (SELECT i.tenant FROM {schema}.inbox AS i WHERE i.scope = $1 ORDER BY i.tenant LIMIT 1)
      UNION ALL
      SELECT next.tenant
      FROM found AS f
      CROSS JOIN LATERAL (
        SELECT i.tenant FROM {schema}.inbox AS i WHERE i.scope = $1 AND i.tenant > f.tenant ORDER BY i.tenant LIMIT 1
      ) AS next
    )
    SELECT f.tenant::text FROM found AS f LIMIT 65
  );
BEGIN
  IF cardinality(tenants) > 64 THEN
    RAISE EXCEPTION 'inbox % has more than 64 tenants, so no key can be looked for in it: end what is expected there with `oncebox expect remove`', $1
      USING ERRCODE = 'OB011';
  END IF;
  RETURN QUERY
  SELECT k.key
  FROM unnest($2) AS k (key)
  WHERE EXISTS (
    SELECT
    FROM unnest(tenants) AS t (tenant)
    CROSS JOIN LATERAL (
      SELECT FROM {schema}.inbox AS i WHERE i.scope = $1 AND i.tenant = t.tenant AND i.key = k.key OFFSET 0
    ) AS i
  );
END $$;
COMMENT ON FUNCTION {schema}.arrived_keys IS 'For relays: which of these keys an inbox of this database has.';

-- Notes which messages have not arrived, in place of the earlier notes, and that the transactions
-- up to below end_xact have been looked at. Nothing, when another relay was faster.
CREATE FUNCTION {schema}.note_unhandled(expectation bigint, first_xact xid8, end_xact xid8, lanes smallint[], ids bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  e {schema}.expectation;
  messages bigint;
  oldest text;
BEGIN
  SELECT x.* INTO e FROM {schema}.expectation AS x WHERE x.id = $1 FOR UPDATE;
  IF NOT FOUND OR first_xact IS NOT NULL
    AND first_xact IS DISTINCT FROM (SELECT min(m.xact) FROM {schema}.expectation_mark AS m WHERE m.expectation = $1) THEN
    RETURN;
  END IF;
  DELETE FROM {schema}.unhandled AS u
  WHERE u.expectation = $1 AND NOT EXISTS (SELECT FROM unnest($4, $5) AS n (lane, id) WHERE n.lane = u.lane AND n.id = u.id);
  INSERT INTO {schema}.unhandled (expectation, lane, id, key, subject, created_at)
  SELECT $1, m.lane, m.id, m.key, m.subject, m.created_at
  FROM unnest($4, $5) AS n (lane, id)
  JOIN {schema}.log AS m ON m.lane = n.lane AND m.id = n.id
  WHERE NOT EXISTS (SELECT FROM {schema}.unhandled AS u WHERE u.expectation = $1 AND u.lane = n.lane AND u.id = n.id)
  ORDER BY m.created_at
  LIMIT {schema}.unhandled_max() - (SELECT count(*) FROM {schema}.unhandled AS u WHERE u.expectation = $1);
  IF end_xact IS NOT NULL THEN
    INSERT INTO {schema}.expectation_mark (expectation, xact, system_identifier, marked_at)
    SELECT $1, end_xact, m.system_identifier, m.marked_at
    FROM {schema}.expectation_mark AS m
    WHERE m.expectation = $1 AND m.xact = first_xact
    ON CONFLICT ON CONSTRAINT expectation_mark_pkey DO NOTHING;
    DELETE FROM {schema}.expectation_mark AS m WHERE m.expectation = $1 AND m.xact < end_xact;
  END IF;
  UPDATE {schema}.expectation AS x
  SET (unhandled, oldest_at, oldest_key) = (
    SELECT count(*), min(u.created_at), (array_agg(u.key ORDER BY u.created_at, u.id))[1]
    FROM {schema}.unhandled AS u
    WHERE u.expectation = $1
  )
  WHERE x.id = $1
  RETURNING x.unhandled, x.oldest_key INTO messages, oldest;
  IF e.unhandled = 0 AND messages > 0 THEN
    PERFORM {schema}.send_event('unhandled', NULL, jsonb_build_object(
      'subject', e.subject, 'inbox', e.scope, 'within_seconds', e.within_seconds, 'messages', messages, 'key', oldest));
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.note_unhandled IS 'For relays: notes which messages are not in their inbox in time.';

-- Looks at the expectations whose inbox is in this database, and returns the others, which a relay
-- looks at in theirs, and whether there is more to look at now. One that cannot be judged stops no
-- other: it stays where it is, and its row has the reason.
CREATE FUNCTION {schema}.look_for_unhandled()
RETURNS TABLE (expectation bigint, scope text, inbox_database text, first_xact xid8, end_xact xid8, is_behind boolean, fault text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  e record;
  lanes smallint[];
  ids bigint[];
BEGIN
  FOR e IN SELECT d.* FROM {schema}.expectations_due() AS d LOOP
    fault := NULL;
    IF e.inbox_database IS NULL THEN
      BEGIN
        WITH expected AS MATERIALIZED (
          SELECT m.* FROM {schema}.expected_messages(e.expectation, e.first_xact, e.end_xact) AS m
        ),
        arrived AS MATERIALIZED (
          SELECT k.key FROM {schema}.arrived_keys(e.scope, (SELECT array_agg(x.key) FROM expected AS x)) AS k (key)
        )
        SELECT array_agg(x.lane), array_agg(x.id) INTO lanes, ids
        FROM expected AS x
        WHERE NOT EXISTS (SELECT FROM arrived AS a WHERE a.key = x.key);
        PERFORM {schema}.note_unhandled(e.expectation, e.first_xact, e.end_xact, lanes, ids);
      EXCEPTION WHEN OTHERS THEN
        fault := SQLERRM;
      END;
    END IF;
    RETURN QUERY SELECT e.expectation, e.scope, e.inbox_database, e.first_xact, e.end_xact, e.is_behind AND fault IS NULL, fault;
  END LOOP;
END $$;
COMMENT ON FUNCTION {schema}.look_for_unhandled IS 'For relays: looks for messages that are not in their inbox in time.';
