-- Events: messages to programs about trouble, enqueued in the transaction that records the trouble,
-- so that none is lost and none invented. None is sent unless an operator has chosen its kind.

CREATE TABLE {schema}.event_kind (
  kind text COLLATE "C" NOT NULL,
  CONSTRAINT event_kind_pkey PRIMARY KEY (kind),
  CONSTRAINT event_kind_known CHECK (kind IN ('parked', 'dead', 'loss', 'pause', 'dead-letter', 'stuck'))
);
COMMENT ON TABLE {schema}.event_kind IS 'The kinds of events that are sent, as messages with the subject oncebox.events.KIND.';

-- Trouble with an event itself sends none: it would go on for ever. Delivery goes before events: if
-- one cannot be enqueued, there is a warning in PostgreSQL's log.
CREATE FUNCTION {schema}.send_event(kind text, about text, facts jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF about LIKE 'oncebox.events.%' OR NOT EXISTS (SELECT FROM {schema}.event_kind AS k WHERE k.kind = send_event.kind) THEN
    RETURN;
  END IF;
  PERFORM {schema}.enqueue(
    concat('event-', gen_random_uuid()),
    concat('oncebox.events.', send_event.kind),
    convert_to((jsonb_build_object('event', send_event.kind, 'at', clock_timestamp(), 'database', current_database()) || facts)::text, 'UTF8'),
    '{"Content-Type": "application/json"}'
  );
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

-- Not those that wait behind others, for a pause or for a replay: they have made no attempt. A dead
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
