-- Undo: one discard of an operator comes back whole, to the tables and the order that it came from,
-- or not at all; and so does a message that was edited and not sent. Rows are in `kept`
-- (0004_operations.sql) for a day.

-- Why a dead letter cannot come back; NULL when it can.
CREATE FUNCTION {schema}.letter_obstacle(k {schema}.kept) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    WHEN d.ordering_key IS NOT NULL
      THEN 'messages of its ordering key may have run since: they waited behind it until its discard'
    WHEN d.key IS NULL THEN (
      SELECT format('a copy of it died again: dead letter %s', l.id)
      FROM {schema}.dead_letter AS l
      WHERE l.scope = d.scope AND l.stream = d.stream AND l.stream_sequence = d.stream_sequence AND l.stored_at = d.stored_at
    )
    ELSE coalesce(
      (SELECT format('a message of its key died since: dead letter %s', min(l.id))
       FROM {schema}.dead_letter AS l
       WHERE l.key = d.key AND l.scope = d.scope AND l.tenant = d.tenant AND l.created_at > k.kept_at
       HAVING count(*) > 0),
      (SELECT format('its key was settled again since, as %s', i.status)
       FROM {schema}.inbox AS i
       WHERE i.scope = d.scope AND i.tenant = d.tenant AND i.key = d.key AND i.created_at > k.kept_at),
      (SELECT 'a message of its key is being handled'
       FROM {schema}.inbox_claim AS c
       WHERE c.scope = d.scope AND c.tenant = d.tenant AND c.key = d.key AND c.created_at > k.kept_at),
      (SELECT 'a message of its key is failing'
       FROM {schema}.inbox_attempt AS a
       WHERE a.scope = d.scope AND a.tenant = d.tenant AND a.key = d.key AND a.first_at > k.kept_at
       LIMIT 1)
    )
  END
  FROM jsonb_populate_record(NULL::{schema}.dead_letter, k.columns) AS d
$$;

-- Why a message cannot come back; NULL when it can. None may pass another of its ordering key that
-- was sent in the meantime. The messages after it are looked at in the log, or where they waited
-- then. Where relays skip dead messages, a dead one has no order that it could break.
CREATE FUNCTION {schema}.message_obstacle(k {schema}.kept, command text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m {schema}.parked := jsonb_populate_record(NULL::{schema}.parked, k.columns);
  looked bigint;
  passed bigint;
BEGIN
  IF k.origin = 'edited' THEN
    RETURN (SELECT 'the edited message was sent, tried or given up since' WHERE NOT EXISTS (
      SELECT
      FROM {schema}.parked AS p
      WHERE p.lane = k.lane AND p.id = k.id AND p.replay = 0 AND p.attempts = 0 AND p.key = k.columns ->> 'edited'
    ));
  END IF;
  IF EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = k.lane AND p.id = k.id) THEN
    RETURN 'it is set aside again';
  END IF;
  IF NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = k.lane AND d.id = k.id) THEN
    RETURN 'the log has forgotten that it was discarded, and the messages after it';
  END IF;
  IF m.ordering_key IS NULL
     OR m.dead_at IS NOT NULL AND NOT coalesce((SELECT bool_or(r.dead_blocks) FROM {schema}.relay AS r), true) THEN
    RETURN NULL;
  END IF;
  IF k.follower IS NOT NULL
     AND NOT EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = k.lane AND p.id = k.follower AND p.replay = 0)
     AND NOT EXISTS (
       SELECT
       FROM {schema}.kept AS other
       JOIN {schema}.audit AS a ON a.id = other.audit
       WHERE other.lane = k.lane AND other.id = k.follower AND a.command = message_obstacle.command
     ) THEN
    RETURN format('the next message of its ordering key, id %s, waited behind it, and has been sent or given up since', k.follower);
  END IF;
  IF k.follower IS NOT NULL THEN
    RETURN NULL;
  END IF;
  WITH later AS MATERIALIZED (
    SELECT l.id, l.ordering_key, l.xact
    FROM {schema}.message AS l
    WHERE l.lane = k.lane AND l.id > k.lane_floor
    ORDER BY l.id
    LIMIT 1000001
  )
  SELECT count(*), min(l.id) FILTER (
    WHERE l.ordering_key = m.ordering_key
      AND l.id > k.id
      AND (l.id <= c.floor OR l.id <= c.high AND c.reset_until IS NULL AND pg_visible_in_snapshot(l.xact, c.snap))
      AND NOT EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = k.lane AND p.id = l.id AND p.replay = 0)
      AND NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = k.lane AND d.id = l.id)
  ) INTO looked, passed
  FROM later AS l
  JOIN {schema}.lane_cursor AS c ON c.lane = k.lane;
  RETURN CASE
    WHEN passed IS NOT NULL THEN format('a later message of its ordering key, id %s, was sent since', passed)
    WHEN looked > 1000000 THEN 'more than 1,000,000 messages of its lane came since: it is not known whether one of its ordering key was sent'
  END;
END $$;

CREATE FUNCTION {schema}.undo_rows(audit bigint) RETURNS TABLE (
  audit_id bigint, origin text, message_id bigint, scope text, key text, subject text, reason text, obstacle text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT a.id, k.origin, a.message_id, a.scope, a.key, a.subject, a.reason,
    CASE
      WHEN u.id IS NOT NULL THEN format('%s brought it back at %s UTC', coalesce(u.operator, u.database_user),
        to_char(u.happened_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'))
      WHEN a.action = 'edit' AND a.scope IS NOT NULL THEN 'the edited letter was sent, or given to its consumer, at once'
      WHEN k.audit IS NULL OR k.kept_at < clock_timestamp() - {schema}.kept_for()
        THEN 'it is not kept: it is kept for a day, and of several the newest 100,000 rows of at most 1 GiB'
      WHEN k.origin = 'dead_letter' THEN {schema}.letter_obstacle(k)
      ELSE {schema}.message_obstacle(k, a.command)
    END
  FROM {schema}.audit AS chosen
  JOIN {schema}.audit AS a ON a.command = chosen.command AND a.action IN ('discard', 'edit')
  LEFT JOIN {schema}.kept AS k ON k.audit = a.id
  LEFT JOIN {schema}.audit AS u ON u.undoes = a.id
  WHERE chosen.id = $1 AND chosen.action IN ('discard', 'edit')
  ORDER BY a.id
$$;
COMMENT ON FUNCTION {schema}.undo_rows IS 'For operators: the rows that the discard, or edit, with this row in the audit took out, and why one of them cannot come back.';

-- A letter keeps its id and its time, and a message its attempts; one that was not dead is due, and
-- the relay looks at the first of each ordering key. Maintenance is locked first, as everywhere,
-- and the lanes in their order.
CREATE FUNCTION {schema}.undo_discard(audit bigint, by text, note text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids bigint[];
  blocked bigint;
  first text;
  k {schema}.kept;
  letter {schema}.dead_letter;
  m {schema}.parked;
BEGIN
  PERFORM FROM {schema}.maintenance FOR UPDATE;
  PERFORM FROM {schema}.lane AS l
  WHERE l.lane IN (
    SELECT a.lane
    FROM {schema}.audit AS chosen
    JOIN {schema}.audit AS a ON a.command = chosen.command AND a.action IN ('discard', 'edit')
    WHERE chosen.id = $1
  )
  ORDER BY l.lane
  FOR UPDATE;
  PERFORM FROM {schema}.kept AS l
  WHERE l.audit IN (
    SELECT a.id
    FROM {schema}.audit AS chosen
    JOIN {schema}.audit AS a ON a.command = chosen.command AND a.action IN ('discard', 'edit')
    WHERE chosen.id = $1
  )
  ORDER BY l.audit
  FOR UPDATE;
  SELECT array_agg(r.audit_id ORDER BY r.audit_id), count(r.obstacle),
         min(format('message %s, key %s: %s', r.message_id, coalesce(r.key, 'none'), r.obstacle)) FILTER (WHERE r.obstacle IS NOT NULL)
  INTO ids, blocked, first
  FROM {schema}.undo_rows($1) AS r;
  IF ids IS NULL THEN
    RAISE EXCEPTION 'row % of the audit is no discard and no edit', $1
      USING ERRCODE = 'OB011', HINT = 'Only a discard or an edit can be taken back; the audit has its id.';
  END IF;
  IF blocked > 0 THEN
    RAISE EXCEPTION '% of % rows cannot come back, so none did. %', blocked, cardinality(ids), first
      USING ERRCODE = 'OB011', HINT = format('See each row: oncebox undo %s --dry-run', $1);
  END IF;
  FOR k IN SELECT l.* FROM {schema}.kept AS l WHERE l.audit = ANY (ids) ORDER BY l.id LOOP
    IF k.origin = 'dead_letter' THEN
      letter := jsonb_populate_record(NULL::{schema}.dead_letter, k.columns);
      letter.payload := k.payload;
      INSERT INTO {schema}.dead_letter OVERRIDING SYSTEM VALUE SELECT letter.*;
    ELSE
      m := jsonb_populate_record(NULL::{schema}.parked, k.columns);
      m.payload := k.payload;
      m.waits_for := NULL;
      IF k.origin = 'edited' THEN
        DELETE FROM {schema}.parked AS p WHERE p.lane = m.lane AND p.id = m.id;
        PERFORM {schema}.rewrite_message(m.lane, m.id, m.key, m.headers, m.payload);
      END IF;
      m.next_attempt_at := CASE WHEN m.dead_at IS NULL AND NOT EXISTS (
        SELECT
        FROM {schema}.parked AS p
        WHERE p.lane = m.lane AND p.ordering_key = m.ordering_key AND p.dead_at IS NULL AND p.id < m.id
      ) THEN clock_timestamp() END;
      INSERT INTO {schema}.parked SELECT m.*;
      DELETE FROM {schema}.discarded AS d WHERE d.lane = k.lane AND d.id = k.id;
    END IF;
  END LOOP;
  DELETE FROM {schema}.kept AS l WHERE l.audit = ANY (ids);
  RETURN QUERY
  INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason, scope, undoes)
  SELECT $2, $3, 'undo', a.lane, a.message_id, a.key, a.subject, a.reason, a.scope, a.id
  FROM {schema}.audit AS a
  WHERE a.id = ANY (ids)
  ORDER BY a.id
  RETURNING audit.message_id;
END $$;
COMMENT ON FUNCTION {schema}.undo_discard IS 'For operators: brings back all rows of the discard, or edit, with this row in the audit, or none. Returns the ids of the messages and letters.';
