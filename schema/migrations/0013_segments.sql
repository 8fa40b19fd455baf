-- The ring of segments: a turn ends, a segment is drained, a segment is emptied. Relays call these
-- functions in a transaction that has locked the row of `maintenance`, as do resend_lost() and
-- repair_ids(): one of them at a time. docs/design/growth.md says why it is as it is.

CREATE TABLE {schema}.milestone (
  lane              smallint NOT NULL,
  number            bigint NOT NULL,
  floor             bigint NOT NULL,
  high              bigint NOT NULL,
  snap              pg_snapshot NOT NULL,
  system_identifier bigint NOT NULL,
  reached_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT milestone_pkey PRIMARY KEY (lane, number),
  CONSTRAINT milestone_bounds CHECK (floor >= 0 AND high >= 0)
);
COMMENT ON TABLE {schema}.milestone IS 'Where the cursors stood at some times: messages that a milestone calls settled were settled no later than reached_at.';

-- The relay that locks the row maintains; the others go without.
CREATE TABLE {schema}.maintenance (
  only_row boolean NOT NULL DEFAULT true,
  CONSTRAINT maintenance_pkey PRIMARY KEY (only_row),
  CONSTRAINT maintenance_only_row CHECK (only_row)
);
COMMENT ON TABLE {schema}.maintenance IS 'One row, locked by the relay that deletes messages past their retention.';
INSERT INTO {schema}.maintenance DEFAULT VALUES;

CREATE TABLE {schema}.maintenance_fault (
  step    text COLLATE "C" NOT NULL,
  reason  text NOT NULL,
  since   timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT maintenance_fault_pkey PRIMARY KEY (step),
  CONSTRAINT maintenance_fault_reason CHECK (length(reason) <= 1000)
);
COMMENT ON TABLE {schema}.maintenance_fault IS 'Steps of maintenance that fail: each stops no other. A row goes when its step works again.';

-- Whether this transaction may enqueue in this turn. In READ COMMITTED each statement has a
-- snapshot of its own, which is younger than the turn that it read before. An older snapshot would
-- not show the messages that were enqueued since, in the turn before.
CREATE FUNCTION {schema}.check_turn(this_turn bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- A sequence without a value is another fault, which the caller names.
  IF this_turn IS NOT NULL
     AND NOT EXISTS (SELECT FROM {schema}.segment AS s WHERE s.number = this_turn % 8 AND s.turn = this_turn)
     AND EXISTS (SELECT FROM {schema}.segment) THEN
    RAISE EXCEPTION 'the message log has turned since this transaction took its snapshot' USING ERRCODE = '40001',
      HINT = 'Nothing was enqueued. Run the transaction again.';
  END IF;
END $$;

-- Writes the row of this turn, where end_turn() was cut off between setval() and its commit.
-- Without it transactions above READ COMMITTED cannot enqueue. Returns whether it was missing.
--
-- A sequence that was restarted, or did not come with the rows, is set to the newest turn again:
-- keys that were enqueued in that one and in the one before stay unique.
CREATE FUNCTION {schema}.note_turn() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  newest bigint := (SELECT greatest(max(s.turn), 0) FROM {schema}.segment AS s);
  this_turn bigint := pg_sequence_last_value('{schema}.turn');
BEGIN
  IF this_turn IS NULL OR this_turn < newest THEN
    this_turn := setval('{schema}.turn', newest);
  END IF;
  UPDATE {schema}.segment AS s
  SET turn = this_turn, is_live = true, is_empty = false, began_at = clock_timestamp(), drained_at = NULL, tried_at = NULL,
    tried_xact = NULL, looked_lane = NULL, looked_id = NULL
  WHERE s.number = this_turn % 8 AND s.turn <> this_turn;
  RETURN FOUND;
END $$;

-- Ends the turn, if it began longer ago than `span_seconds`: from then on messages go into the next
-- segment. Returns NULL when it has ended, or is not to end yet, else the reason why it cannot.
--
-- No transaction may have written into the segment and be open still: an `enqueue` in the next turn
-- would not see its row. So the table is locked in SHARE mode, which waits for such transactions,
-- and producers wait meanwhile, `wait_ms` at most; all relays together try it once in
-- `pause_seconds`. One that was open at the last try already, or is prepared, is looked for first,
-- and so is other work with a lock that conflicts, such as a vacuum: then nothing is locked. The
-- age of another role's transaction is hidden from an ordinary owner; its id is not.
--
-- setval() survives a rollback. The turn has ended all the same then, since no transaction was
-- writing; note_turn() writes its row.
CREATE FUNCTION {schema}.end_turn(span_seconds float8, wait_ms integer, pause_seconds float8) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  this_turn bigint;
  closing regclass;
  closed {schema}.segment;
  next {schema}.segment;
  holder text;
BEGIN
  IF {schema}.note_turn() THEN
    RETURN NULL;
  END IF;
  this_turn := pg_sequence_last_value('{schema}.turn');
  closing := format('{schema}.message_%s', this_turn % 8);
  -- Written while the clock was ahead.
  UPDATE {schema}.segment AS s
  SET began_at = least(s.began_at, clock_timestamp()), tried_at = least(s.tried_at, clock_timestamp())
  WHERE s.began_at > clock_timestamp() OR s.tried_at > clock_timestamp();
  SELECT s.* INTO closed FROM {schema}.segment AS s WHERE s.number = this_turn % 8;
  IF closed.began_at > clock_timestamp() - make_interval(secs => least(greatest(span_seconds, 0), {schema}.retention_max())) THEN
    RETURN NULL;
  END IF;
  SELECT s.* INTO next FROM {schema}.segment AS s WHERE s.number = (this_turn + 1) % 8;
  IF NOT next.is_empty THEN
    RETURN format('the next segment, message_%s, is not empty: %s', next.number, CASE
      WHEN next.is_live THEN 'messages in it are due'
      ELSE 'it is kept until all of it is past the retention time' END);
  END IF;
  SELECT CASE
      WHEN l.mode = 'ShareUpdateExclusiveLock' THEN format('process %s vacuums or analyses %s', l.pid, closing)
      WHEN l.mode <> 'RowExclusiveLock' THEN format('process %s has locked %s (%s)', l.pid, closing, l.mode)
      WHEN l.pid IS NULL THEN 'a prepared transaction has enqueued and is still open'
      ELSE format('the transaction of process %s has enqueued and is still open', l.pid)
    END INTO holder
  FROM pg_locks AS l
  WHERE l.relation = closing AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND (l.mode <> 'RowExclusiveLock' OR l.pid IS NULL OR EXISTS (
      SELECT
      FROM pg_locks AS x
      WHERE x.pid = l.pid AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
        AND (closed.tried_xact::text::bigint - x.transactionid::text::bigint) & 4294967295 BETWEEN 1 AND 2147483647
    ))
  LIMIT 1;
  IF FOUND THEN
    RETURN holder;
  END IF;
  IF closed.tried_at > clock_timestamp() - make_interval(secs => least(greatest(pause_seconds, 0), {schema}.retention_max())) THEN
    RETURN format('producers hold %s', closing);
  END IF;
  UPDATE {schema}.segment AS s SET tried_at = clock_timestamp(), tried_xact = pg_current_xact_id()
  WHERE s.number = this_turn % 8;
  PERFORM set_config('lock_timeout', end_turn.wait_ms::text, true);
  BEGIN
    EXECUTE format('LOCK TABLE %s IN SHARE MODE', closing);
  EXCEPTION WHEN lock_not_available THEN
    RETURN format('producers hold %s', closing);
  END;
  UPDATE {schema}.segment AS s
  SET turn = this_turn + 1, is_live = true, is_empty = false, began_at = clock_timestamp(), drained_at = NULL, tried_at = NULL,
    tried_xact = NULL, looked_lane = NULL, looked_id = NULL
  WHERE s.number = next.number;
  PERFORM setval('{schema}.turn', this_turn + 1);
  RETURN NULL;
END $$;
COMMENT ON FUNCTION {schema}.end_turn IS 'For relays: has messages go into the next segment; says why it cannot.';

-- Whether a message in this segment is due by the cursors, as claim.sql says it. The segment must
-- not be that of this turn.
CREATE FUNCTION {schema}.segment_is_due(number smallint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  is_due boolean;
BEGIN
  EXECUTE format($due$
    SELECT EXISTS (
      SELECT
      FROM {schema}.lane AS l
      LEFT JOIN {schema}.lane_cursor AS c ON c.lane = l.lane
      CROSS JOIN (SELECT s.system_identifier FROM pg_control_system() AS s OFFSET 0) AS here
      WHERE c.lane IS NULL
        OR c.target IS NOT NULL
        OR c.reset_until IS NOT NULL
        OR c.system_identifier <> here.system_identifier
        OR pg_snapshot_xmax(c.snap) > pg_snapshot_xmax(pg_current_snapshot())
        OR EXISTS (SELECT FROM {schema}.message_%1$s AS m WHERE m.lane = l.lane AND m.id > c.high)
        OR EXISTS (
          SELECT FROM {schema}.message_%1$s AS m
          WHERE m.lane = l.lane AND m.xact >= pg_snapshot_xmax(c.snap) AND m.id > c.floor
        )
        OR EXISTS (
          SELECT
          FROM pg_snapshot_xip(c.snap) AS ended (xact)
          JOIN {schema}.message_%1$s AS m ON m.lane = l.lane AND m.xact = ended.xact AND m.id > c.floor
        )
    )
  $due$, number) INTO is_due;
  RETURN is_due;
END $$;

-- Notes which segments hold no message that is due, and returns how many are live. A closed segment
-- gets no row any more, and each row in it is committed or gone. So the cursors alone decide which
-- messages are due, as in claim.sql.
--
-- A segment that is said to be empty and is not was filled by another program, by a subscription or
-- a restore: it is live until it is drained.
CREATE FUNCTION {schema}.drain_segments() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  part {schema}.segment;
  is_so boolean;
BEGIN
  PERFORM {schema}.note_turn();
  UPDATE {schema}.segment AS s SET drained_at = clock_timestamp() WHERE s.drained_at > clock_timestamp();
  FOR part IN
    SELECT s.* FROM {schema}.segment AS s
    WHERE (s.is_live OR s.is_empty) AND s.number <> pg_sequence_last_value('{schema}.turn') % 8
    ORDER BY s.number
  LOOP
    IF part.is_empty THEN
      EXECUTE format('SELECT EXISTS (SELECT FROM {schema}.message_%s)', part.number) INTO is_so;
      IF is_so THEN
        UPDATE {schema}.segment AS s SET is_empty = false, is_live = true, drained_at = clock_timestamp()
        WHERE s.number = part.number;
      END IF;
      CONTINUE;
    END IF;
    is_so := {schema}.segment_is_due(part.number);
    IF NOT is_so THEN
      UPDATE {schema}.segment AS s SET is_live = false, drained_at = clock_timestamp() WHERE s.number = part.number;
    END IF;
  END LOOP;
  RETURN (SELECT count(*) FROM {schema}.segment AS s WHERE s.is_live);
END $$;
COMMENT ON FUNCTION {schema}.drain_segments IS 'For relays: notes which segments of the log hold nothing that is due.';

-- The segments that retention may empty: drained for longer than that, and neither that of this
-- turn nor the one before, which keeps keys unique.
CREATE FUNCTION {schema}.old_segments(retention_seconds float8) RETURNS SETOF {schema}.segment
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT s.*
  FROM {schema}.segment AS s
  WHERE NOT s.is_live
    AND NOT s.is_empty
    AND s.number NOT IN (pg_sequence_last_value('{schema}.turn') % 8, (pg_sequence_last_value('{schema}.turn') + 7) % 8)
    AND s.drained_at <= clock_timestamp() - make_interval(secs => least(greatest($1, 0), {schema}.retention_max()))
  ORDER BY s.turn
$$;

-- Looks into the next segment to be emptied for messages of a restored database that were perhaps
-- never sent: they were written here, below the floor of their lane, and repair_ids() has not seen
-- them. Sets them aside, to be sent once more. Looks at up to `most` rows below the floors, and
-- goes on from there the next time; says how many it has set aside, the highest id, and whether the
-- segment is done. No row when there is nothing to look at, as in every database that was never
-- restored.
--
-- No relay waits for it: it locks lanes only where it finds something. Maintenance, then lanes, as
-- repair_ids() does.
CREATE FUNCTION {schema}.find_unsent(
  retention_seconds float8, most integer, OUT number smallint, OUT unsent bigint, OUT unsent_id bigint, OUT is_done boolean
) RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  part {schema}.segment;
  seen record;
BEGIN
  SELECT s.* INTO part FROM {schema}.old_segments(retention_seconds) AS s LIMIT 1;
  IF NOT FOUND OR part.looked_lane = 32767 OR NOT EXISTS (SELECT FROM {schema}.reset) THEN
    RETURN;
  END IF;
  number := part.number;
  EXECUTE format($seen$
    WITH looked_at AS MATERIALIZED (
      SELECT m.*, x.snap
      FROM {schema}.reset AS x
      JOIN {schema}.lane_cursor AS c ON c.lane = x.lane
      CROSS JOIN LATERAL (
        SELECT n.lane, n.id, n.xact, n.xmin AS row_xmin
        FROM {schema}.message_%1$s AS n
        WHERE n.lane = x.lane AND n.id <= c.floor AND n.id > CASE WHEN x.lane = $1 THEN $2 ELSE 0 END
        ORDER BY n.id
        LIMIT $3
      ) AS m
      WHERE $1 IS NULL OR x.lane >= $1
      ORDER BY m.lane, m.id
      LIMIT $3
    )
    SELECT
      (SELECT count(*) FROM looked_at) AS rows,
      l.lane AS last_lane,
      l.id AS last_id,
      ARRAY(
        SELECT m.id
        FROM looked_at AS m
        WHERE NOT ({schema}.written_by(m.row_xmin) < m.xact OR pg_visible_in_snapshot({schema}.written_by(m.row_xmin), m.snap))
          AND NOT EXISTS (SELECT FROM {schema}.replay AS r WHERE r.lane = m.lane AND r.id = m.id)
          AND NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = m.lane AND d.id = m.id)
      ) AS ids
    FROM looked_at AS l
    ORDER BY l.lane DESC, l.id DESC
    LIMIT 1
  $seen$, number) INTO seen USING part.looked_lane, part.looked_id, most;
  unsent := 0;
  IF cardinality(seen.ids) > 0 THEN
    PERFORM FROM {schema}.lane AS l ORDER BY l.lane FOR UPDATE;
    EXECUTE format($park$
      INSERT INTO {schema}.parked (
        lane, id, turn, ordering_key, attempts, next_attempt_at, error, key, subject, headers, payload, created_at
      )
      SELECT
        m.lane, m.id, $1, m.ordering_key, 0,
        CASE WHEN m.ordering_key IS NULL OR row_number() OVER (PARTITION BY m.lane, m.ordering_key ORDER BY m.id) = 1
          THEN clock_timestamp() END,
        'written below the floor of its lane after a restore', m.key, m.subject, m.headers, m.payload, m.created_at
      FROM {schema}.lane AS l
      JOIN {schema}.message_%1$s AS m ON m.lane = l.lane AND m.id = ANY ($2)
      ON CONFLICT ON CONSTRAINT parked_pkey DO NOTHING
    $park$, number) USING part.turn, seen.ids;
    GET DIAGNOSTICS unsent = ROW_COUNT;
    unsent_id := (SELECT max(f.id) FROM unnest(seen.ids) AS f (id));
  END IF;
  is_done := coalesce(seen.rows, 0) < most;
  UPDATE {schema}.segment AS s
  SET looked_lane = CASE WHEN is_done THEN 32767 ELSE seen.last_lane END, looked_id = seen.last_id
  WHERE s.number = find_unsent.number;
  RETURN NEXT;
END $$;
COMMENT ON FUNCTION {schema}.find_unsent IS 'For relays, and in prune_segment() for operators: in a restored database, looks for messages that were never sent, before their segment is emptied.';

-- Empties the oldest segment that is past retention. A message that is set aside carries itself,
-- and so does a delayed one. Returns which it was, and about how many messages went. No row when
-- there is nothing to do, or when another session, such as pg_dump, reads the segment for longer
-- than 300 ms, or before find_unsent() is done.
--
-- No producer waits for the lock: the segment is not that of this turn, nor the one before. A dump
-- whose snapshot is older sees the segment empty; all that was in it is past retention.
CREATE FUNCTION {schema}.empty_segment(retention_seconds float8, OUT number smallint, OUT messages bigint) RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '300ms' AS $$
DECLARE
  part {schema}.segment;
BEGIN
  SELECT s.* INTO part FROM {schema}.old_segments(retention_seconds) AS s LIMIT 1;
  IF NOT FOUND OR part.looked_lane IS DISTINCT FROM 32767 AND EXISTS (SELECT FROM {schema}.reset) THEN
    RETURN;
  END IF;
  number := part.number;
  messages := {schema}.count_segment(number);
  BEGIN
    EXECUTE format('TRUNCATE {schema}.message_%s', number);
  EXCEPTION WHEN lock_not_available THEN
    RETURN;
  END;
  UPDATE {schema}.segment AS s SET is_empty = true, drained_at = NULL WHERE s.number = empty_segment.number;
  RETURN NEXT;
END $$;
COMMENT ON FUNCTION {schema}.empty_segment IS 'For relays, and in prune_segment() for operators: empties the oldest segment of the log that is past the retention time.';

-- How many messages a segment holds: counted up to a million, beyond that as VACUUM estimates it.
CREATE FUNCTION {schema}.count_segment(number smallint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  counted bigint := (SELECT c.reltuples::bigint FROM pg_class AS c
    WHERE c.oid = format('{schema}.message_%s', number)::regclass);
BEGIN
  IF counted < 1000000 THEN
    EXECUTE format('SELECT count(*) FROM (SELECT FROM {schema}.message_%s AS m WHERE m.lane >= 0 LIMIT 1000000) AS m', number)
      INTO counted;
  END IF;
  RETURN counted;
END $$;

-- Deletes notes that deleted messages were discarded or replayed, up to `most` of each kind. A note
-- goes when every segment up to its turn is emptied. Returns whether there is more to delete.
CREATE FUNCTION {schema}.forget_emptied(most integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  oldest bigint := (SELECT min(s.turn) FROM {schema}.segment AS s WHERE NOT s.is_empty);
  deleted bigint;
  is_full boolean;
BEGIN
  DELETE FROM {schema}.discarded AS d
  USING (SELECT o.lane, o.id FROM {schema}.discarded AS o WHERE o.turn < oldest ORDER BY o.turn LIMIT most) AS old
  WHERE d.lane = old.lane AND d.id = old.id;
  GET DIAGNOSTICS deleted = ROW_COUNT;
  is_full := deleted >= most;
  DELETE FROM {schema}.replay AS r
  USING (
    SELECT o.lane, o.id
    FROM {schema}.replay AS o
    WHERE o.turn < oldest AND NOT EXISTS (SELECT FROM {schema}.message AS m WHERE m.lane = o.lane AND m.id = o.id)
    ORDER BY o.turn
    LIMIT most
  ) AS old
  WHERE r.lane = old.lane AND r.id = old.id;
  GET DIAGNOSTICS deleted = ROW_COUNT;
  RETURN is_full OR deleted >= most;
END $$;
COMMENT ON FUNCTION {schema}.forget_emptied IS 'For relays, and in prune_segment() for operators: deletes the notes about messages whose segments are emptied.';
