-- Events: messages to programs about trouble, enqueued in the transaction that records the trouble,
-- so that none is lost and none invented. None is sent unless an operator has chosen its kind.

CREATE TABLE {schema}.event_kind (
  kind text COLLATE "C" NOT NULL,
  CONSTRAINT event_kind_pkey PRIMARY KEY (kind),
  CONSTRAINT event_kind_known CHECK (kind IN ('parked', 'dead', 'loss', 'pause', 'dead-letter', 'stuck', 'unhandled'))
);
COMMENT ON TABLE {schema}.event_kind IS 'The kinds of events that are sent, as messages with the subject oncebox.events.KIND.';

-- Trouble with an event itself sends none: it would go on for ever. Delivery goes before events: if
-- one cannot be enqueued, there is a warning in PostgreSQL's log.
CREATE FUNCTION {schema}.send_event(kind text, about text, facts jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  event_key text := concat('event-', gen_random_uuid());
BEGIN
  IF about LIKE 'oncebox.events.%' OR NOT EXISTS (SELECT FROM {schema}.event_kind AS k WHERE k.kind = send_event.kind) THEN
    RETURN;
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  -- enqueue() refuses these subjects, so that no producer sends an event.
  PERFORM {schema}.append(
    ARRAY[nextval('{schema}.message_id_seq')], ARRAY[{schema}.lane_of(event_key)], ARRAY[event_key],
    ARRAY[concat('oncebox.events.', send_event.kind)], '{NULL}', ARRAY['{"Content-Type": "application/json"}'::jsonb],
    ARRAY[convert_to((jsonb_build_object('event', send_event.kind, 'at', clock_timestamp(), 'database', current_database()) || facts)::text, 'UTF8')],
    false
  );
  IF pg_sequence_last_value('{schema}.relay_asleep') = 1 THEN
    PERFORM {schema}.wake_relay();
  END IF;
EXCEPTION
  WHEN OTHERS THEN
    RAISE WARNING 'an event "%" was not sent: %', send_event.kind, SQLERRM;
END $$;
COMMENT ON FUNCTION {schema}.send_event IS 'Private: enqueue an event if its kind is chosen and the trouble is not about an event.';

CREATE FUNCTION {schema}.parked_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}.send_event(
    CASE WHEN NEW.dead_at IS NULL THEN 'parked' ELSE 'dead' END,
    NEW.subject,
    jsonb_build_object('key', NEW.key, 'subject', NEW.subject, 'ordering_key', NEW.ordering_key,
                       'attempts', NEW.attempts, 'cause', NEW.cause, 'reason', NEW.error)
  );
  RETURN NULL;
END $$;

-- Not those that wait for others, for a pause or for a replay: they have made no attempt. A dead
-- one that was retried, and dies again, is dead again.
CREATE TRIGGER parked_event AFTER INSERT ON {schema}.parked
  FOR EACH ROW WHEN (NEW.attempts > 0 AND (NEW.dead_at IS NOT NULL OR NEW.next_attempt_at IS NOT NULL))
  EXECUTE FUNCTION {schema}.parked_event();
CREATE TRIGGER parked_change_event AFTER UPDATE ON {schema}.parked
  FOR EACH ROW WHEN (
    OLD.dead_at IS NULL AND NEW.dead_at IS NOT NULL
    OR OLD.attempts = 0 AND NEW.attempts > 0 AND NEW.next_attempt_at IS NOT NULL
  )
  EXECUTE FUNCTION {schema}.parked_event();

CREATE FUNCTION {schema}.loss_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}.send_event(
    'loss',
    NULL,
    jsonb_build_object('stream', NEW.stream, 'lane', NEW.lane, 'kind', NEW.kind,
                       'stored_sequence', NEW.sequence, 'acknowledged_sequence', NEW.lost_sequence)
  );
  RETURN NULL;
END $$;
CREATE TRIGGER loss_event AFTER INSERT ON {schema}.loss
  FOR EACH ROW EXECUTE FUNCTION {schema}.loss_event();

-- A pause that takes the place of another is a "resumed" and a "paused".
CREATE FUNCTION {schema}.pause_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  of record := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
  PERFORM {schema}.send_event(
    'pause',
    NULL,
    jsonb_build_object(
      'action', CASE WHEN TG_OP = 'DELETE' THEN 'resumed' WHEN of.rate IS NULL THEN 'paused' ELSE 'throttled' END,
      'kind', of.kind, 'value', of.value, 'rate', of.rate, 'reason', of.reason, 'by', of.paused_by,
      'until', nullif(of.ends_at, 'infinity')
    )
  );
  RETURN NULL;
END $$;
CREATE TRIGGER pause_event AFTER INSERT ON {schema}.pause
  FOR EACH ROW EXECUTE FUNCTION {schema}.pause_event();
CREATE TRIGGER resume_event AFTER DELETE ON {schema}.pause
  FOR EACH ROW WHEN (OLD.ends_at > clock_timestamp())
  EXECUTE FUNCTION {schema}.pause_event();

CREATE FUNCTION {schema}.dead_letter_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}.send_event(
    'dead-letter',
    NEW.subject,
    jsonb_build_object('inbox', NEW.scope, 'tenant', NEW.tenant, 'key', NEW.key, 'subject', NEW.subject,
                       'stream', NEW.stream, 'stream_sequence', NEW.stream_sequence,
                       'deliveries', NEW.deliveries, 'reason', NEW.reason)
  );
  RETURN NULL;
END $$;
CREATE TRIGGER dead_letter_event AFTER INSERT ON {schema}.dead_letter
  FOR EACH ROW EXECUTE FUNCTION {schema}.dead_letter_event();

CREATE FUNCTION {schema}.stuck_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}.send_event(
    'stuck',
    NULL,
    jsonb_build_object('saga', NEW.id, 'type', NEW.type, 'business_id', NEW.business_id,
                       'state', NEW.state, 'reason', NEW.reason)
  );
  RETURN NULL;
END $$;
CREATE TRIGGER stuck_event AFTER UPDATE OF state ON {schema}.saga
  FOR EACH ROW WHEN (NEW.state IN ('stuck', 'quarantined') AND NEW.state IS DISTINCT FROM OLD.state)
  EXECUTE FUNCTION {schema}.stuck_event();

-- The choice of an operator, recorded.
CREATE FUNCTION {schema}.enable_events(kinds text[], by text, note text) RETURNS SETOF text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH enabled AS (
    INSERT INTO {schema}.event_kind (kind)
    SELECT unnest($1::text[])
    ON CONFLICT ON CONSTRAINT event_kind_pkey DO NOTHING
    RETURNING kind
  ),
  recorded AS (
    INSERT INTO {schema}.audit (operator, note, action, reason)
    SELECT $2, $3, 'enable-events', string_agg(e.kind, ' ' ORDER BY e.kind)
    FROM enabled AS e
    HAVING count(*) > 0
  )
  SELECT kind
  FROM enabled
  ORDER BY kind
$$;
COMMENT ON FUNCTION {schema}.enable_events IS 'For operators: has kinds of events sent. Returns those that were not sent before.';

CREATE FUNCTION {schema}.disable_events(kinds text[], by text, note text) RETURNS SETOF text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH disabled AS (
    DELETE FROM {schema}.event_kind
    WHERE kind = ANY ($1::text[])
    RETURNING kind
  ),
  recorded AS (
    INSERT INTO {schema}.audit (operator, note, action, reason)
    SELECT $2, $3, 'disable-events', string_agg(d.kind, ' ' ORDER BY d.kind)
    FROM disabled AS d
    HAVING count(*) > 0
  )
  SELECT kind
  FROM disabled
  ORDER BY kind
$$;
COMMENT ON FUNCTION {schema}.disable_events IS 'For operators: has kinds of events sent no more. Returns those that were sent before.';

-- More actions of operators, each with its audit, as in 0004_operations.sql.

CREATE FUNCTION {schema}.cancel_delayed_messages(keys text[], by text, note text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY
  WITH cancelled AS MATERIALIZED (
    SELECT w.id, w.key, w.subject
    FROM (
      SELECT d.id, d.key, d.subject, {schema}.cancel_delayed(d.key) AS is_done
      FROM {schema}.delayed AS d
      WHERE d.key = ANY ($1)
      OFFSET 0
    ) AS w
    WHERE w.is_done
  )
  INSERT INTO {schema}.audit (operator, note, action, message_id, key, subject, reason)
  SELECT $2, $3, 'cancel', c.id, c.key, c.subject, 'delayed'
  FROM cancelled AS c
  RETURNING message_id;
END $$;
COMMENT ON FUNCTION {schema}.cancel_delayed_messages IS 'For operators: cancel_delayed() for many keys. Returns the ids of those that were still delayed.';

-- A pause takes the place of an earlier one of the same messages. Those that have ended go.
CREATE FUNCTION {schema}.pause_delivery(kind text, value text, rate double precision, subjects text[], ordering_key text, by text, note text,
  ends_at timestamptz, seconds double precision) RETURNS TABLE (pause_ends_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF $9 NOT BETWEEN 0 AND {schema}.retention_max() OR isfinite($8) AND $8 >= '10000-01-01 00:00+00' THEN
    RAISE EXCEPTION 'a pause cannot last until %', coalesce($9 || ' seconds from now', $8::text)
      USING ERRCODE = 'OB011', HINT = 'It lasts 0 seconds to 100 years, or ends before the year 10000. Leave both out for one without an end.';
  END IF;
  IF $1 IS NULL OR $2 IS NULL OR ($1 = 'ordering key') IS DISTINCT FROM ($5 IS NOT NULL) OR ($4 IS NULL) IS DISTINCT FROM ($5 IS NOT NULL) THEN
    RAISE EXCEPTION 'a pause of kind % names %', coalesce($1, 'null'), CASE WHEN $1 = 'ordering key' THEN 'an ordering key and no subjects' ELSE 'subjects and no ordering key' END
      USING ERRCODE = 'OB011', HINT = 'For example pause_delivery(''subject'', ''orders.>'', NULL, ''{orders.>}'', NULL, ..).';
  END IF;
  IF $3 <= 0 OR $3 >= 'infinity' THEN
    RAISE EXCEPTION 'a rate of % messages a second is not above 0 and finite', $3
      USING ERRCODE = 'OB011', HINT = 'Leave it out for a pause.';
  END IF;
  -- One after the other: two of the same messages would insert one row twice.
  PERFORM FROM {schema}.outbox FOR NO KEY UPDATE;
  DELETE FROM {schema}.pause
  WHERE pause.kind = $1 AND pause.value = $2 OR pause.ends_at <= clock_timestamp();
  RETURN QUERY
  WITH paused AS (
    INSERT INTO {schema}.pause (kind, value, rate, subjects, ordering_key, paused_by, reason, ends_at)
    SELECT $1, $2, $3, $4, $5, $6, $7, e.ends_at
    FROM (
      SELECT coalesce(clock_timestamp() + make_interval(secs => $9::double precision), $8::timestamptz, 'infinity') AS ends_at
    ) AS e
    WHERE e.ends_at > clock_timestamp()
    RETURNING pause.kind, pause.value, pause.rate, pause.ends_at
  ),
  recorded AS (
    INSERT INTO {schema}.audit (operator, note, action, reason)
    SELECT $6, $7, CASE WHEN p.rate IS NULL THEN 'pause' ELSE 'throttle' END, concat_ws(' ', p.kind, p.value)
    FROM paused AS p
  )
  SELECT nullif(p.ends_at, 'infinity') AS ends_at
  FROM paused AS p;
END $$;
COMMENT ON FUNCTION {schema}.pause_delivery IS 'For operators: pauses messages, or throttles them to a rate, until a time or for some seconds; NULL is without an end. Returns when it ends; no row when that is past.';

CREATE FUNCTION {schema}.resume_delivery(kind text, value text, by text, note text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY
  WITH resumed AS (
    DELETE FROM {schema}.pause
    WHERE pause.kind = $1 AND pause.value = $2
    RETURNING pause.kind, pause.value, pause.ends_at
  )
  INSERT INTO {schema}.audit (operator, note, action, reason)
  SELECT $3, $4, 'resume', concat_ws(' ', r.kind, r.value)
  FROM resumed AS r
  WHERE r.ends_at > clock_timestamp()
  RETURNING id;
END $$;
COMMENT ON FUNCTION {schema}.resume_delivery IS 'For operators: ends a pause, or a throttle. No row when there was none.';

-- Makes a failing message due now, for an operator. No row when the key has ended, or one of its
-- messages is due already and none has failed since: so a key gets one copy for each time that it
-- fails. The number, of the key's last failure, makes the same id for the broker when the command
-- dies before its commit and runs again. Under a lease the pause is one of the claim, too, and ends
-- now.
CREATE FUNCTION {schema}.retry_failing(scope text, tenant text, key text, message text, by text, note text) RETURNS TABLE (outbox text, number bigint)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH taken AS (
    UPDATE {schema}.inbox_attempt AS a
    SET due_at = clock_timestamp()
    WHERE a.scope = $1
      AND a.tenant = $2
      AND a.key = $3
      AND a.message = $4
      AND a.failed_at IS NOT NULL
      AND NOT EXISTS (
        SELECT
        FROM {schema}.inbox_attempt AS o
        WHERE o.scope = a.scope AND o.tenant = a.tenant AND o.key = a.key
          AND o.due_at <= clock_timestamp()
          AND NOT EXISTS (
            SELECT
            FROM {schema}.inbox_attempt AS p
            WHERE p.scope = a.scope AND p.tenant = a.tenant AND p.key = a.key AND p.failed_at > o.due_at
          )
      )
      AND NOT EXISTS (
        SELECT
        FROM {schema}.inbox AS i
        WHERE i.scope = $1 AND i.tenant = $2 AND i.key = $3
      )
    RETURNING a.scope, a.tenant, a.key, a.subject, a.reason
  ),
  released AS (
    UPDATE {schema}.inbox_claim AS c
    SET lease_until = clock_timestamp()
    FROM taken AS t
    WHERE c.scope = t.scope
      AND c.tenant = t.tenant
      AND c.key = t.key
      AND c.state <> 'running'
      AND c.lease_until > clock_timestamp()
  ),
  noted AS (
    INSERT INTO {schema}.audit (operator, note, action, scope, key, subject, reason)
    SELECT $5, $6, 'retry', t.scope, t.key, t.subject, t.reason
    FROM taken AS t
  )
  SELECT
    (SELECT o.identity FROM {schema}.outbox AS o) AS outbox,
    (
      SELECT (extract(epoch FROM max(a.failed_at)) * 1000000)::bigint
      FROM {schema}.inbox_attempt AS a
      WHERE a.scope = $1 AND a.tenant = $2 AND a.key = $3
    ) AS number
  FROM taken AS t
$$;
COMMENT ON FUNCTION {schema}.retry_failing IS 'For operators: makes a failing message due now. The caller publishes a copy of it, and then commits.';
