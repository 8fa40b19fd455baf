-- A copy of an outbox, or one that has moved, is adopted: 0004_operations.sql says when relays take
-- an outbox for a copy.

-- For operators: relays may serve this copy of an outbox. If it has moved it stays who it is. Else
-- it becomes an outbox of its own, with a new identity, so it has neither receipts nor losses, and
-- its backlog is sent or discarded. All lanes are locked, so no relay is in the middle of a pass;
-- to discard, all transactions that have enqueued must have ended, and new ones wait.
CREATE FUNCTION {schema}.adopt(
  is_moved boolean, discards boolean, operator text, note text, OUT identity text, OUT backlog bigint, OUT digest text
) RETURNS record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '10s' AS $$
DECLARE
  place record;
  earlier text;
BEGIN
  PERFORM FROM {schema}.lane AS l ORDER BY l.lane FOR UPDATE;
  SELECT * INTO place FROM {schema}.home_here;
  earlier := coalesce(nullif(place.address, ''), 'a place that no relay has noted');
  IF place.verdict = 'new' OR place.verdict = 'here' AND place.rival IS NULL AND NOT is_moved THEN
    RAISE EXCEPTION 'this database is where its outbox lives: there is nothing to adopt'
      USING ERRCODE = 'OB013', HINT = 'See `oncebox status`: it says when relays take an outbox for a copy.';
  END IF;
  backlog := 0;
  IF NOT is_moved THEN
    IF discards THEN
      LOCK TABLE {schema}.message_0, {schema}.message_1, {schema}.message_2, {schema}.message_3, {schema}.message_4,
        {schema}.message_5, {schema}.message_6, {schema}.message_7, {schema}.delayed IN SHARE ROW EXCLUSIVE MODE;
    END IF;
    SELECT count(*), md5(string_agg(concat_ws(' ', b.lane, b.id, b.action), ',' ORDER BY b.lane, b.id, b.action))
    INTO backlog, digest
    FROM {schema}.backlog() AS b;
    IF discards THEN
      PERFORM {schema}.discard_backlog(adopt.operator, adopt.note);
    END IF;
    UPDATE {schema}.cursor SET acknowledged = '{}';
    DELETE FROM {schema}.receipt;
    DELETE FROM {schema}.late_receipt;
    DELETE FROM {schema}.loss;
    DELETE FROM {schema}.stream;
    -- The original looks by itself for the messages that it expects.
    DELETE FROM {schema}.unhandled;
    DELETE FROM {schema}.expectation_mark;
    UPDATE {schema}.expectation SET looked_at = NULL, unhandled = 0, oldest_at = NULL, oldest_key = NULL;
    UPDATE {schema}.outbox SET identity = DEFAULT;
  END IF;
  SELECT o.identity INTO identity FROM {schema}.outbox AS o;
  INSERT INTO {schema}.home AS h (system_identifier, database_oid, database_name, address)
  VALUES (place.system_identifier, place.database_oid, place.database_name, '')
  ON CONFLICT ON CONSTRAINT home_pkey DO UPDATE
  SET token = CASE WHEN is_moved THEN h.token ELSE excluded.token END,
      system_identifier = excluded.system_identifier, database_oid = excluded.database_oid,
      database_name = excluded.database_name,
      -- Where relays serve it already, they go on as they are.
      address = CASE WHEN place.verdict = 'here' AND place.rival IS NULL THEN h.address ELSE '' END,
      noted_at = CASE WHEN is_moved THEN h.noted_at ELSE excluded.noted_at END,
      -- Once relays serve it here, it is the senior of the place that it has left; see home.sql.
      moved_at = CASE WHEN is_moved THEN clock_timestamp() END,
      rival = NULL, rival_since = NULL, rival_seen_at = NULL;
  INSERT INTO {schema}.audit (operator, note, action, reason)
  VALUES (adopt.operator, adopt.note, 'adopt', CASE
    WHEN is_moved AND place.verdict = 'here' AND place.rival IS NULL THEN format('it is the original, and stays outbox %s', identity)
    WHEN is_moved THEN format('moved here from %s: it stays outbox %s', earlier, identity)
    WHEN discards THEN format('a copy of %s: now outbox %s; %s messages of the backlog were discarded', earlier, identity, backlog)
    ELSE format('a copy of %s: now outbox %s; its backlog is kept: %s messages', earlier, identity, backlog)
  END);
END $$;
COMMENT ON FUNCTION {schema}.adopt IS 'For operators: relays may serve this copy of an outbox, as an outbox of its own, or as the original that has moved here.';

-- The unsent messages of an outbox: messages that are due, set aside, dead, delayed, or to be
-- replayed, with the action that gives each up.
CREATE FUNCTION {schema}.backlog() RETURNS TABLE (lane smallint, id bigint, key text, subject text, action text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  -- Rows of another cluster compare with its snapshot, as in read_reset.sql.
  SELECT m.lane, m.id, m.key, m.subject, 'discard'
  FROM {schema}.lane_cursor AS c
  JOIN {schema}.log AS m ON m.lane = c.lane
  WHERE m.id > c.floor
    AND (m.id > c.high
      OR NOT pg_visible_in_snapshot(m.xact, c.snap)
        AND (c.target IS NULL OR m.id > c.after OR NOT pg_visible_in_snapshot(m.xact, c.target)))
    AND NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = m.lane AND d.id = m.id)
  UNION ALL
  SELECT p.lane, p.id, p.key, p.subject, CASE p.replay WHEN 0 THEN 'discard' ELSE 'cancel' END
  FROM {schema}.parked AS p
  UNION ALL
  SELECT NULL, d.id, d.key, d.subject, 'cancel'
  FROM {schema}.delayed AS d
$$;

-- Settles all that is in the log, and deletes the messages that are set aside or delayed. Each
-- message leaves a row in the audit table, so that a trace says by whom and why. The caller has
-- locked lanes and tables.
CREATE FUNCTION {schema}.discard_backlog(by text, note text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
  SELECT discard_backlog.by, discard_backlog.note, b.action, b.lane, b.id, b.key, b.subject, 'the backlog of a copy that was adopted'
  FROM {schema}.backlog() AS b;
  INSERT INTO {schema}.discarded (lane, id)
  SELECT b.lane, b.id FROM {schema}.backlog() AS b WHERE b.action = 'discard'
  ON CONFLICT DO NOTHING;
  INSERT INTO {schema}.cursor (lane, number, floor, high, system_identifier)
  SELECT c.lane, c.number + 1, last.id, last.id, here.system_identifier
  FROM {schema}.lane_cursor AS c
  CROSS JOIN pg_control_system() AS here
  CROSS JOIN LATERAL (
    SELECT greatest(c.floor, c.high, c.reset_until, max(m.id)) AS id FROM {schema}.log AS m WHERE m.lane = c.lane
  ) AS last;
  DELETE FROM {schema}.cursor AS c
  WHERE c.number < (SELECT newest.number FROM {schema}.lane_cursor AS newest WHERE newest.lane = c.lane);
  -- A message that is written later is none of these, however low its id.
  INSERT INTO {schema}.reset AS r (lane)
  SELECT l.lane FROM {schema}.lane AS l
  ON CONFLICT ON CONSTRAINT reset_pkey DO UPDATE SET snap = excluded.snap;
  DELETE FROM {schema}.milestone;
  UPDATE {schema}.replay AS r
  SET cancelled = p.replay
  FROM {schema}.parked AS p
  WHERE p.replay > 0 AND r.lane = p.lane AND r.id = p.id;
  DELETE FROM {schema}.parked;
  PERFORM {schema}.delete_placeholders((SELECT array_agg(d.id) FROM {schema}.delayed AS d));
  DELETE FROM {schema}.delayed;
END $$;
