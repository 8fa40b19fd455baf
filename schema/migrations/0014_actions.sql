-- The actions of operators on the outbox. Each writes the audit in the statement that acts: the
-- operator's role changes no table but through these functions, so that no operator acts without a
-- record, or in the name of another login.

-- Builds of before 0.1.0 left tables of another shape, under the same numbers.
DO $$
BEGIN
  IF NOT EXISTS (
    SELECT FROM pg_attribute AS a WHERE a.attrelid = '{schema}.parked'::regclass AND a.attname = 'payload' AND NOT a.attisdropped
  ) THEN
    RAISE EXCEPTION 'this schema was installed by a build of before 0.1.0, and cannot be migrated'
      USING HINT = 'Let its relay deliver what is due, uninstall it with that build, and install it anew.';
  END IF;
END $$;

-- Dead messages become due. Of an ordering key only the first gets a due time: the others follow
-- it. Should another message stand before it, the relay sees that (read_parked.sql).
CREATE FUNCTION {schema}.make_due(lane smallint, ids bigint[]) RETURNS SETOF {schema}.parked
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  UPDATE {schema}.parked AS p
  SET
    attempts = 0,
    dead_at = NULL,
    next_attempt_at = CASE WHEN d.place = 1 OR d.ordering_key IS NULL THEN clock_timestamp() END
  FROM (
    SELECT q.lane, q.id, q.ordering_key, row_number() OVER (PARTITION BY q.ordering_key ORDER BY q.id) AS place
    FROM {schema}.parked AS q
    WHERE q.lane = $1 AND q.id = ANY ($2) AND q.dead_at IS NOT NULL
  ) AS d
  WHERE p.lane = d.lane AND p.id = d.id
  RETURNING p.*
$$;

CREATE FUNCTION {schema}.retry_dead(lane smallint, ids bigint[], by text, note text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM {schema}.lane AS l WHERE l.lane = $1 FOR UPDATE;
  RETURN QUERY
  INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
  SELECT $3, $4, 'retry', r.lane, r.id, r.key, r.subject, r.error
  FROM {schema}.make_due($1, $2) AS r
  RETURNING message_id;
END $$;
COMMENT ON FUNCTION {schema}.retry_dead IS 'For operators: makes dead messages of a lane due again, with their attempts forgotten. Returns their ids.';

-- A parked message becomes due, with the attempts that it has. Others wait for it as before.
CREATE FUNCTION {schema}.retry_parked(lane smallint, ids bigint[], by text, note text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM {schema}.lane AS l WHERE l.lane = $1 FOR UPDATE;
  RETURN QUERY
  WITH due AS (
    UPDATE {schema}.parked AS p
    SET next_attempt_at = clock_timestamp()
    WHERE p.lane = $1 AND p.id = ANY ($2) AND p.dead_at IS NULL AND p.next_attempt_at IS NOT NULL
    RETURNING p.id, p.key, p.subject, p.error
  )
  INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
  SELECT $3, $4, 'retry', $1, d.id, d.key, d.subject, d.error
  FROM due AS d
  RETURNING message_id;
END $$;
COMMENT ON FUNCTION {schema}.retry_parked IS 'For operators: has relays try parked messages of a lane again now, and not after their pause. Returns their ids.';

-- The next message of an ordering key that is set aside.
CREATE FUNCTION {schema}.follower(lane smallint, ordering_key text, id bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT least(
    (SELECT min(p.id) FROM {schema}.parked AS p WHERE p.lane = $1 AND p.ordering_key = $2 AND p.id > $3 AND p.dead_at IS NULL AND p.replay = 0),
    (SELECT min(p.id) FROM {schema}.parked AS p WHERE p.lane = $1 AND p.ordering_key = $2 AND p.id > $3 AND p.dead_at IS NOT NULL AND p.replay = 0)
  )
$$;

-- A replay is given up alone: its message was stored once, and can be replayed again. Then the
-- relay looks at the first message of each ordering key: perhaps nothing stands before it any more.
CREATE FUNCTION {schema}.give_up_parked(lane smallint, ids bigint[], by text, note text, kind text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM {schema}.lane AS l WHERE l.lane = $1 FOR UPDATE;
  PERFORM {schema}.bound_kept();
  RETURN QUERY
  WITH gone AS (
    DELETE FROM {schema}.parked AS p
    WHERE p.lane = $1
      AND p.id = ANY ($2)
      AND CASE $5::text
        WHEN 'dead' THEN p.dead_at IS NOT NULL
        WHEN 'parked' THEN p.dead_at IS NULL AND p.replay = 0
        ELSE p.dead_at IS NULL AND p.replay > 0
      END
    RETURNING p.*
  ),
  followed AS (
    UPDATE {schema}.parked AS p
    SET next_attempt_at = clock_timestamp()
    FROM (SELECT DISTINCT g.lane, g.ordering_key FROM gone AS g WHERE g.ordering_key IS NOT NULL) AS s
    CROSS JOIN LATERAL (
      SELECT f.id
      FROM {schema}.parked AS f
      WHERE f.lane = s.lane
        AND f.ordering_key = s.ordering_key
        AND f.dead_at IS NULL
        AND NOT EXISTS (SELECT FROM gone AS g WHERE g.id = f.id)
      ORDER BY f.id
      LIMIT 1
    ) AS first
    WHERE p.lane = s.lane AND p.id = first.id AND p.next_attempt_at IS NULL
  ),
  discarded AS (
    INSERT INTO {schema}.discarded (lane, id)
    SELECT g.lane, g.id
    FROM gone AS g
    WHERE g.replay = 0
  ),
  cancelled AS (
    UPDATE {schema}.replay AS r
    SET cancelled = g.replay
    FROM gone AS g
    WHERE g.replay > 0 AND r.lane = g.lane AND r.id = g.id
  ),
  noted AS (
    INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
    SELECT $3, $4, CASE g.replay WHEN 0 THEN 'discard' ELSE 'cancel' END, g.lane, g.id, g.key, g.subject, g.error
    FROM gone AS g
    RETURNING audit.id, message_id
  ),
  kept AS (
    INSERT INTO {schema}.kept (audit, origin, lane, id, lane_floor, follower, bytes, columns, payload)
    SELECT n.id, 'parked', g.lane, g.id, c.floor, {schema}.follower(g.lane, g.ordering_key, g.id), octet_length(g.payload),
           to_jsonb(g) - 'payload', g.payload
    FROM noted AS n
    JOIN gone AS g ON g.id = n.message_id
    JOIN {schema}.lane_cursor AS c ON c.lane = g.lane
    WHERE g.replay = 0
  )
  SELECT n.message_id
  FROM noted AS n;
END $$;
COMMENT ON FUNCTION {schema}.give_up_parked IS 'For operators: gives messages or replays of a lane up, each if it is still dead, parked or replay, as kind says, and keeps the messages for a day, see undo_discard(). Returns their ids.';

-- A replay takes the way of a parked message, so it keeps the order of its ordering key, and later
-- messages wait for it. One that is dead gets the next number and is sent once. One that is still
-- to be sent is left alone, so that each request has a copy of its own. Under the lock of
-- maintenance no message is deleted meanwhile.
CREATE FUNCTION {schema}.replay_messages(lane smallint, ids bigint[], by text, note text, request text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM {schema}.maintenance FOR UPDATE;
  PERFORM FROM {schema}.lane AS l WHERE l.lane = $1 FOR UPDATE;
  RETURN QUERY
  WITH wanted AS MATERIALIZED (
    SELECT m.lane, m.id, m.turn, m.key, m.subject, m.ordering_key, m.headers, m.payload, m.created_at
    FROM {schema}.message AS m
    WHERE m.lane = $1
      AND m.id = ANY ($2)
      AND NOT EXISTS (
        SELECT FROM {schema}.parked AS p
        WHERE p.lane = m.lane AND p.id = m.id AND (p.replay = 0 OR p.dead_at IS NULL)
        OFFSET 0
      )
      AND NOT EXISTS (
        SELECT FROM {schema}.discarded AS d
        WHERE d.lane = m.lane AND d.id = m.id
        OFFSET 0
      )
  ),
  numbered AS (
    INSERT INTO {schema}.replay AS r (lane, id, number, request)
    SELECT w.lane, w.id, 1, $5
    FROM wanted AS w
    ORDER BY w.id
    ON CONFLICT ON CONSTRAINT replay_pkey DO UPDATE
    SET
      number = r.number + 1,
      request = excluded.request,
      requested_at = excluded.requested_at,
      turn = excluded.turn
    WHERE r.request <> excluded.request
    RETURNING r.lane, r.id, r.number
  ),
  placed AS (
    SELECT w.*, n.number, row_number() OVER (PARTITION BY w.ordering_key ORDER BY w.id) AS place
    FROM numbered AS n
    JOIN wanted AS w ON w.lane = n.lane AND w.id = n.id
  ),
  requested AS (
    INSERT INTO {schema}.parked AS p (
      lane, id, turn, ordering_key, attempts, next_attempt_at, error, cause, replay, key, subject, headers, payload, created_at
    )
    SELECT
      w.lane,
      w.id,
      w.turn,
      w.ordering_key,
      0,
      CASE WHEN w.place = 1 OR w.ordering_key IS NULL THEN clock_timestamp() END,
      'to be replayed',
      'replay',
      w.number,
      w.key,
      w.subject,
      w.headers,
      w.payload,
      w.created_at
    FROM placed AS w
    ORDER BY w.id
    ON CONFLICT ON CONSTRAINT parked_pkey DO UPDATE
    SET
      attempts = 0,
      next_attempt_at = excluded.next_attempt_at,
      dead_at = NULL,
      error = excluded.error,
      cause = excluded.cause,
      replay = excluded.replay,
      parked_at = excluded.parked_at
  )
  INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
  SELECT $3, $4, 'replay', w.lane, w.id, w.key, w.subject, $5
  FROM placed AS w
  RETURNING message_id;
END $$;
COMMENT ON FUNCTION {schema}.replay_messages IS 'For operators: asks for settled messages of a lane to be sent again, each under the next number, unless this request has asked before, or a replay is still to be sent. Returns their ids.';

-- Of an ordering key only the first gets a due time: so they keep their order among themselves, and
-- unsent messages wait for them. A message that became parked or discarded, or is due by itself
-- since its lane went back, is left alone.
CREATE FUNCTION {schema}.resend_missing(lane smallint, ids bigint[], by text, note text, why text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM {schema}.maintenance FOR UPDATE;
  PERFORM FROM {schema}.lane AS l WHERE l.lane = $1 FOR UPDATE;
  RETURN QUERY
  WITH sent AS (
    INSERT INTO {schema}.parked (
      lane, id, turn, ordering_key, attempts, next_attempt_at, error, cause, key, subject, headers, payload, created_at
    )
    SELECT
      m.lane,
      m.id,
      m.turn,
      m.ordering_key,
      0,
      CASE WHEN m.ordering_key IS NULL OR row_number() OVER (PARTITION BY m.ordering_key ORDER BY m.id) = 1
        THEN clock_timestamp() END,
      'the stream does not hold it, or holds it otherwise',
      'lost',
      m.key,
      m.subject,
      m.headers,
      m.payload,
      m.created_at
    FROM {schema}.message AS m
    JOIN {schema}.lane_cursor AS c ON c.lane = m.lane
    WHERE m.lane = $1
      AND m.id = ANY ($2::bigint[])
      AND (m.id <= c.floor OR m.id <= c.high AND c.reset_until IS NULL AND pg_visible_in_snapshot(m.xact, c.snap))
      AND NOT EXISTS (
        SELECT FROM {schema}.discarded AS d
        WHERE d.lane = m.lane AND d.id = m.id
        OFFSET 0
      )
    ON CONFLICT ON CONSTRAINT parked_pkey DO NOTHING
    RETURNING parked.lane, parked.id, parked.key, parked.subject
  )
  INSERT INTO {schema}.audit (operator, note, action, lane, message_id, key, subject, reason)
  SELECT $3, $4, 'resend', s.lane, s.id, s.key, s.subject, $5
  FROM sent AS s
  RETURNING message_id;
END $$;
COMMENT ON FUNCTION {schema}.resend_missing IS 'For operators: parks settled messages of a lane that a stream does not hold, or holds otherwise, so that they are sent again under their ids. Returns their ids.';

-- As a relay does it: no segment is emptied before it is known that all of it was sent, and the
-- notes about deleted messages go last. Operators call none of the parts, which write no audit.
CREATE FUNCTION {schema}.prune_segment(retention_seconds float8, by text, note text, why text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  messages bigint;
BEGIN
  PERFORM FROM {schema}.maintenance FOR UPDATE;
  SELECT f.unsent INTO messages FROM {schema}.find_unsent(retention_seconds, 20000) AS f;
  IF FOUND THEN
    INSERT INTO {schema}.audit (operator, note, action, messages, reason)
    SELECT prune_segment.by, prune_segment.note, 'resend', messages, 'written below the floor of its lane after a restore'
    WHERE messages > 0;
    RETURN 0;
  END IF;
  SELECT e.messages INTO messages FROM {schema}.empty_segment(retention_seconds) AS e;
  IF NOT FOUND THEN
    RETURN CASE WHEN {schema}.forget_emptied(10000) THEN 0 END;
  END IF;
  INSERT INTO {schema}.audit (operator, note, action, messages, reason)
  SELECT prune_segment.by, prune_segment.note, 'prune', messages, prune_segment.why
  WHERE messages > 0;
  RETURN messages;
END $$;
COMMENT ON FUNCTION {schema}.prune_segment IS 'For operators: a step of retention by hand: find_unsent(), empty_segment() or forget_emptied(), under one audit. Returns about how many messages went; NULL when there is nothing more to do.';

CREATE FUNCTION {schema}.prune_inbox(
  first_block bigint, end_block bigint, only_count boolean, by text, note text,
  OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT s.* INTO keys, dead_letters, claims, unknown_effects
  FROM {schema}.sweep_inbox(first_block, end_block, only_count) AS s;
  INSERT INTO {schema}.audit (operator, note, action, messages, reason)
  SELECT prune_inbox.by, prune_inbox.note, 'prune', keys + dead_letters + claims,
    format('beyond the retentions of inboxes: keys %s, dead letters %s, claims %s, effects of unknown outcome %s',
           keys, dead_letters, claims, unknown_effects)
  WHERE NOT only_count AND keys + dead_letters + claims > 0;
END $$;
COMMENT ON FUNCTION {schema}.prune_inbox IS 'For operators: sweep_inbox() by hand, or only a count.';

-- The messages of a lane that resend_lost() would have sent again: those settled after the place to
-- which it goes back, and those that had been parked. `milestone` is the time of that place when
-- `since` has chosen it. The stream drops those that it still has, as duplicates. Where a loss of
-- another stream is being sent again as well, its messages after the place are sent, too.
CREATE FUNCTION {schema}.count_lost(
  lane smallint, stream text, since timestamptz, OUT messages bigint, OUT milestone timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH place AS MATERIALIZED (
    SELECT p.*
    FROM {schema}.resend_place($1, $2, $3) AS p
  ),
  sent AS (
    SELECT m.id
    FROM place AS p
    JOIN {schema}.log AS m ON m.lane = $1 AND m.id > p.floor
    JOIN {schema}.stream AS s ON s.name = $2
    WHERE (m.id > p.high OR NOT pg_visible_in_snapshot(m.xact, p.snap))
      AND (
        m.id <= p.until_floor
        OR m.id <= p.until_high AND pg_visible_in_snapshot(m.xact, p.until_snap)
        OR m.id <= p.until_after AND pg_visible_in_snapshot(m.xact, p.until_target)
      )
      AND (
        m.subject COLLATE "C" ~ s.subjects
        OR p.goes_back AND EXISTS (
          SELECT FROM {schema}.loss AS l
          WHERE l.lane = $1 AND l.resending_at IS NOT NULL AND l.ended_at IS NULL AND m.subject COLLATE "C" ~ l.subjects
        )
      )
    UNION
    SELECT r.id
    FROM place AS p
    JOIN {schema}.late_receipt AS r ON r.lane = $1 AND r.stream = $2 AND r.sequence > p.sequence
      AND r.at BETWEEN coalesce(p.reached_at, '-infinity') AND p.found_at
    WHERE r.key IS NOT NULL OR EXISTS (
      SELECT FROM {schema}.log AS n
      WHERE n.lane = $1 AND n.id = r.id
        AND (n.id <= p.floor OR n.id <= p.high AND pg_visible_in_snapshot(n.xact, p.snap))
    )
  )
  SELECT
    (
      SELECT count(*)
      FROM sent AS m
      WHERE NOT EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = $1 AND p.id = m.id OFFSET 0)
        AND NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = $1 AND d.id = m.id OFFSET 0)
    ),
    (SELECT p.reached_at FROM place AS p)
$$;
COMMENT ON FUNCTION {schema}.count_lost IS 'For operators: how many messages of a lane resend_loss() would have sent again, and since which milestone.';

CREATE FUNCTION {schema}.resend_loss(
  lane smallint, stream text, since timestamptz, by text, note text, OUT messages bigint, OUT milestone timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- The locks of resend_lost(), so that no relay moves the lane after it was counted.
  PERFORM FROM {schema}.maintenance FOR UPDATE;
  PERFORM FROM {schema}.lane AS l WHERE l.lane = resend_loss.lane FOR UPDATE;
  SELECT c.* INTO messages, milestone FROM {schema}.count_lost(resend_loss.lane, resend_loss.stream, resend_loss.since) AS c;
  IF NOT {schema}.resend_lost(resend_loss.lane, resend_loss.stream, resend_loss.since) THEN
    messages := NULL;
    RETURN;
  END IF;
  INSERT INTO {schema}.audit (operator, note, action, lane, messages, reason)
  VALUES (
    resend_loss.by, resend_loss.note, 'resend', resend_loss.lane, resend_loss.messages,
    format('lost by stream %s', resend_loss.stream)
      || coalesce(to_char(milestone AT TIME ZONE 'UTC', '" since "YYYY-MM-DD"T"HH24:MI:SS"Z"'), '')
  );
END $$;
COMMENT ON FUNCTION {schema}.resend_loss IS 'For operators: resend_lost() by hand. Returns how many messages are sent again, and since which milestone; NULL when there is nothing to do. The loss counts as dealt with, also if since leaves messages out.';
