-- The ring of segments: a turn ends, a segment is drained, a segment is emptied. Relays call these
-- functions in a transaction that has locked the row of `maintenance`, as do resend_lost() and
-- repair_ids(): one of them at a time. docs/design/growth.md says why it is as it is.

-- Whether this transaction may enqueue in this turn. In READ COMMITTED each statement has a
-- snapshot of its own, which is younger than the turn that it read before. An older snapshot would
-- not show what was enqueued since, in the turn before.
CREATE FUNCTION {schema}.check_turn(this_turn bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM {schema}.segment AS s WHERE s.number = this_turn % 8 AND s.turn = this_turn)
     AND EXISTS (SELECT FROM {schema}.segment) THEN
    RAISE EXCEPTION 'the message log has turned since this transaction took its snapshot' USING ERRCODE = '40001',
      HINT = 'Nothing was enqueued. Run the transaction again.';
  END IF;
END $$;

-- Writes the row of this turn, where end_turn() was cut off between setval() and its commit.
-- Without it transactions above READ COMMITTED cannot enqueue. Returns whether it was missing.
CREATE FUNCTION {schema}.note_turn() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  this_turn bigint := pg_sequence_last_value('{schema}.turn');
BEGIN
  UPDATE {schema}.segment AS s
  SET turn = this_turn, is_live = true, is_empty = false, began_at = clock_timestamp(), drained_at = NULL, tried_at = NULL
  WHERE s.number = this_turn % 8 AND s.turn <> this_turn;
  RETURN FOUND;
END $$;

-- Ends the turn, if it began longer ago than `span_seconds`: from then on messages go into the next
-- segment. Returns NULL when it has ended, or is not to end yet, else the reason why it cannot.
--
-- No transaction may have written into the segment and be open still: an `enqueue` in the next turn
-- would not see its row. So the table is locked in SHARE mode, which waits for such transactions,
-- and producers wait behind it, `wait_ms` at most; all relays together try it once in
-- `pause_seconds`. One that has been open for a second, or is prepared, is looked for first, and so
-- is other work with a lock that conflicts, such as a vacuum: then nothing is locked.
--
-- setval() survives a rollback. The turn has ended all the same then, since nobody was writing;
-- note_turn() writes its row.
CREATE FUNCTION {schema}.end_turn(span_seconds float8, wait_ms integer, pause_seconds float8) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  this_turn bigint := pg_sequence_last_value('{schema}.turn');
  closing regclass := format('{schema}.message_%s', this_turn % 8);
  next {schema}.segment;
  holder text;
BEGIN
  IF {schema}.note_turn() THEN
    RETURN NULL;
  END IF;
  -- Written while the clock was ahead.
  UPDATE {schema}.segment AS s
  SET began_at = least(s.began_at, clock_timestamp()), tried_at = least(s.tried_at, clock_timestamp())
  WHERE s.began_at > clock_timestamp() OR s.tried_at > clock_timestamp();
  IF (SELECT s.began_at > clock_timestamp() - make_interval(secs => span_seconds) FROM {schema}.segment AS s
      WHERE s.number = this_turn % 8) THEN
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
  LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
  WHERE l.relation = closing AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND (l.mode <> 'RowExclusiveLock' OR l.pid IS NULL OR a.xact_start < clock_timestamp() - interval '1 second')
  LIMIT 1;
  IF FOUND THEN
    RETURN holder;
  END IF;
  IF EXISTS (SELECT FROM {schema}.segment AS s WHERE s.number = this_turn % 8
             AND s.tried_at > clock_timestamp() - make_interval(secs => pause_seconds)) THEN
    RETURN format('producers hold %s', closing);
  END IF;
  UPDATE {schema}.segment AS s SET tried_at = clock_timestamp() WHERE s.number = this_turn % 8;
  PERFORM set_config('lock_timeout', end_turn.wait_ms::text, true);
  BEGIN
    EXECUTE format('LOCK TABLE %s IN SHARE MODE', closing);
  EXCEPTION WHEN lock_not_available THEN
    RETURN format('producers hold %s', closing);
  END;
  UPDATE {schema}.segment AS s
  SET turn = this_turn + 1, is_live = true, is_empty = false, began_at = clock_timestamp(), drained_at = NULL, tried_at = NULL
  WHERE s.number = next.number;
  PERFORM setval('{schema}.turn', this_turn + 1);
  RETURN NULL;
END $$;
COMMENT ON FUNCTION {schema}.end_turn IS 'For relays: has messages go into the next segment; says why it cannot.';

-- Notes which segments hold no message that is due, and returns how many are live. A closed segment
-- gets no row any more, and each row in it is committed or gone. So what is due is due by the
-- cursors, as claim.sql says it.
--
-- A segment that is said to be empty and is not was filled by somebody else, by a subscription or a
-- restore: it is live until it is drained.
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
      EXECUTE format('SELECT EXISTS (SELECT FROM {schema}.message_%s)', {schema}.segment_name(part.number)) INTO is_so;
      IF is_so THEN
        UPDATE {schema}.segment AS s SET is_empty = false, is_live = s.number < 8, drained_at = clock_timestamp()
        WHERE s.number = part.number;
      END IF;
      CONTINUE;
    END IF;
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
    $due$, {schema}.segment_name(part.number)) INTO is_so;
    IF NOT is_so THEN
      UPDATE {schema}.segment AS s SET is_live = false, drained_at = clock_timestamp() WHERE s.number = part.number;
    END IF;
  END LOOP;
  RETURN (SELECT count(*) FROM {schema}.segment AS s WHERE s.is_live);
END $$;
COMMENT ON FUNCTION {schema}.drain_segments IS 'For relays: notes which segments of the log hold nothing that is due.';

-- The last part of its table's name.
CREATE FUNCTION {schema}.segment_name(number smallint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE number WHEN 8 THEN 'kept' ELSE number::text END;

-- The segments that retention may empty: drained for longer than that, and neither that of this
-- turn nor the one before, which keeps keys unique.
CREATE FUNCTION {schema}.old_segments(retention_seconds float8) RETURNS SETOF {schema}.segment
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT s.*
  FROM {schema}.segment AS s
  WHERE NOT s.is_live
    AND NOT s.is_empty
    AND s.number < 8
    AND s.number NOT IN (pg_sequence_last_value('{schema}.turn') % 8, (pg_sequence_last_value('{schema}.turn') + 7) % 8)
    AND s.drained_at <= clock_timestamp() - make_interval(secs => $1)
  ORDER BY s.turn
$$;

-- Empties the oldest segment that is past retention. What somebody may still need is kept: messages
-- that are parked or dead, to be replayed, or delayed, and those that were written below the floor
-- of their lane after a restore and were perhaps never sent. Returns which it was, about how many
-- messages went, and of the last kind how many there are and the highest id. No row when there is
-- nothing to do, or when somebody reads the segment for longer than 300 ms, such as pg_dump.
--
-- No producer waits for the lock: the segment is not that of this turn, nor the one before.
CREATE FUNCTION {schema}.empty_segment(
  retention_seconds float8, OUT number smallint, OUT messages bigint, OUT unsent bigint, OUT unsent_id bigint
) RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '300ms' AS $$
DECLARE
  kept bigint;
BEGIN
  SELECT s.number INTO number FROM {schema}.old_segments(retention_seconds) AS s LIMIT 1;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  messages := {schema}.count_segment(number);
  BEGIN
    EXECUTE format('LOCK TABLE {schema}.message_%s IN ACCESS EXCLUSIVE MODE', number);
  EXCEPTION WHEN lock_not_available THEN
    RETURN;
  END;
  EXECUTE format($keep$
    INSERT INTO {schema}.message_kept (id, lane, xact, key, subject, ordering_key, headers, payload, created_at)
    SELECT m.id, m.lane, m.xact, m.key, m.subject, m.ordering_key, m.headers, m.payload, m.created_at
    FROM (
      SELECT p.lane, p.id FROM {schema}.parked AS p
      UNION
      SELECT -1, d.id FROM {schema}.delayed AS d
    ) AS k
    JOIN {schema}.message_%1$s AS m ON m.lane = k.lane AND m.id = k.id
    ON CONFLICT ON CONSTRAINT message_kept_pkey DO NOTHING
  $keep$, number);
  GET DIAGNOSTICS kept = ROW_COUNT;
  EXECUTE format($strange$
    WITH strange AS (
      INSERT INTO {schema}.message_kept (id, lane, xact, key, subject, ordering_key, headers, payload, created_at)
      SELECT m.id, m.lane, m.xact, m.key, m.subject, m.ordering_key, m.headers, m.payload, m.created_at
      FROM {schema}.reset AS x
      JOIN {schema}.lane_cursor AS c ON c.lane = x.lane
      JOIN {schema}.message_%1$s AS m ON m.lane = x.lane AND m.id <= c.floor
      WHERE NOT ({schema}.written_by(m.xmin) < m.xact OR pg_visible_in_snapshot({schema}.written_by(m.xmin), x.snap))
        AND NOT EXISTS (SELECT FROM {schema}.replay AS r WHERE r.lane = m.lane AND r.id = m.id)
      ON CONFLICT ON CONSTRAINT message_kept_pkey DO NOTHING
      RETURNING id
    )
    SELECT count(*), max(s.id) FROM strange AS s
  $strange$, number) INTO unsent, unsent_id;
  EXECUTE format($forget$
    DELETE FROM {schema}.discarded AS d USING {schema}.message_%1$s AS m WHERE m.lane = d.lane AND m.id = d.id;
    DELETE FROM {schema}.replay AS r USING {schema}.message_%1$s AS m
    WHERE m.lane = r.lane AND m.id = r.id
      AND NOT EXISTS (SELECT FROM {schema}.message_kept AS k WHERE k.lane = r.lane AND k.id = r.id)
  $forget$, number);
  EXECUTE format('TRUNCATE {schema}.message_%s', number);
  UPDATE {schema}.segment AS s SET is_empty = true, drained_at = NULL WHERE s.number = empty_segment.number;
  UPDATE {schema}.segment AS s SET is_empty = false WHERE s.number = 8 AND kept + unsent > 0;
  messages := greatest(messages - kept - unsent, 0);
  RETURN NEXT;
END $$;
COMMENT ON FUNCTION {schema}.empty_segment IS 'For relays and operators: empties the oldest segment of the log that is past the retention time.';

-- How many messages a segment holds: counted up to a million, beyond that as VACUUM estimates it.
CREATE FUNCTION {schema}.count_segment(number smallint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  counted bigint := (SELECT c.reltuples::bigint FROM pg_class AS c
    WHERE c.oid = format('{schema}.message_%s', {schema}.segment_name(number))::regclass);
BEGIN
  IF counted < 1000000 THEN
    EXECUTE format('SELECT count(*) FROM {schema}.message_%s AS m WHERE m.lane >= 0', {schema}.segment_name(number)) INTO counted;
  END IF;
  RETURN counted;
END $$;

-- Deletes what was kept and is needed no more, a retention time after its segment was emptied, and
-- after the message was sent, should its stream lose it; returns how many.
CREATE FUNCTION {schema}.delete_kept(retention_seconds float8) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH old AS MATERIALIZED (
    SELECT k.lane, k.id
    FROM {schema}.message_kept AS k
    LEFT JOIN {schema}.reset AS x ON x.lane = k.lane
    LEFT JOIN {schema}.lane_cursor AS c ON c.lane = k.lane
    WHERE k.kept_at <= clock_timestamp() - make_interval(secs => $1)
      AND EXISTS (SELECT FROM {schema}.segment AS s WHERE s.number = 8 AND NOT s.is_live)
      AND NOT EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = k.lane AND p.id = k.id)
      AND NOT EXISTS (SELECT FROM {schema}.late_receipt AS r WHERE r.lane = k.lane AND r.id = k.id)
      AND NOT (k.lane = -1 AND EXISTS (SELECT FROM {schema}.delayed AS d WHERE d.id = k.id))
      AND (x.lane IS NULL OR k.id > c.floor
        OR EXISTS (SELECT FROM {schema}.replay AS r WHERE r.lane = k.lane AND r.id = k.id)
        OR EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = k.lane AND d.id = k.id))
    LIMIT 1000
  ),
  forgotten AS (
    DELETE FROM {schema}.discarded AS d USING old AS o WHERE d.lane = o.lane AND d.id = o.id
  ),
  unnumbered AS (
    DELETE FROM {schema}.replay AS r USING old AS o WHERE r.lane = o.lane AND r.id = o.id
  ),
  deleted AS (
    DELETE FROM {schema}.message_kept AS k USING old AS o WHERE k.lane = o.lane AND k.id = o.id RETURNING k.lane
  )
  SELECT count(*) FILTER (WHERE d.lane >= 0) FROM deleted AS d
$$;
