-- A prototype of docs/design/growth.md: a ring of eight tables for the log, over a fresh
-- installation of Oncebox. Not part of the product. \set sabotage to the name of a safeguard to see
-- attack.py fail without it: pointer, lock, snapshot, look. \set pause to SQL that is run between
-- the reading of the pointer and the INSERT.
\set ON_ERROR_STOP on
\if :{?sabotage} \else \set sabotage none \endif
\if :{?pause} \else \set pause '' \endif
SET client_min_messages = warning;
SELECT set_config('ring.sabotage', :'sabotage', false), set_config('ring.pause', :'pause', false) \gset ignored_

DROP FUNCTION oncebox.enqueue CASCADE;
ALTER TABLE oncebox.message RENAME TO message_0;
ALTER TABLE oncebox.message_0 RENAME CONSTRAINT message_pkey TO message_0_pkey;
ALTER TABLE oncebox.message_0 RENAME CONSTRAINT message_key_unique TO message_0_key_unique;
ALTER INDEX oncebox.message_lane_xact_id RENAME TO message_0_lane_xact_id;

-- The number of the turn; turn modulo 8 is the slot that new messages go to. A sequence, because
-- every session reads its current value, even with an old snapshot.
CREATE SEQUENCE oncebox.turn AS bigint MINVALUE 0 START 0 CACHE 1;
SELECT setval('oncebox.turn', 0) \gset ignored_

-- The state of each slot. `turn` and `closed_xact` are written in the transaction of the switch: a
-- snapshot that has them has all rows of the slots before.
CREATE TABLE oncebox.slot (
  number      smallint PRIMARY KEY,
  turn        bigint NOT NULL,
  is_live     boolean NOT NULL,   -- a message in it may be due
  is_empty    boolean NOT NULL,
  closed_xact xid8,
  drained_at  timestamptz
);
INSERT INTO oncebox.slot (number, turn, is_live, is_empty)
SELECT n, CASE WHEN n = 0 THEN 0 ELSE -1 END, n = 0, n > 0 FROM generate_series(0, 7) AS n;

DO $prototype$
DECLARE
  sabotage text := current_setting('ring.sabotage');
  legs text := '';
  inserts text := '';
BEGIN
  FOR n IN 0 .. 7 LOOP
    IF n > 0 THEN
      EXECUTE format('CREATE TABLE oncebox.message_%1$s (
        id bigint NOT NULL, lane smallint NOT NULL, xact xid8 NOT NULL DEFAULT pg_current_xact_id(), key text COLLATE "C" NOT NULL,
        subject text NOT NULL, ordering_key text, headers jsonb NOT NULL DEFAULT ''{}'', payload bytea NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT message_%1$s_pkey PRIMARY KEY (lane, id), CONSTRAINT message_%1$s_key_unique UNIQUE (key))', n);
      EXECUTE format('CREATE INDEX message_%1$s_lane_xact_id ON oncebox.message_%1$s (lane, xact, id)', n);
    END IF;
    legs := legs || CASE WHEN n > 0 THEN ' UNION ALL ' ELSE '' END || format(
      'SELECT id, lane, xact, key, subject, ordering_key, headers, payload, created_at, xmin FROM oncebox.message_%s', n);
    inserts := inserts || format($branch$
      %1$s this_slot = %2$s THEN
        INSERT INTO oncebox.message_%2$s (id, lane, key, subject, ordering_key, headers, payload) OVERRIDING SYSTEM VALUE
        SELECT new_id, mod(hashtextextended(coalesce(ordering_key, key), 0) & 1048575, 16)::smallint, key, subject, ordering_key,
               coalesce(headers, '{}'), payload
        WHERE %4$s AND %5$s
        ON CONFLICT ON CONSTRAINT message_%2$s_key_unique DO NOTHING;
        $branch$, CASE WHEN n > 0 THEN 'ELSIF' ELSE 'IF' END, n, (n + 7) % 8,
      CASE WHEN sabotage = 'pointer' THEN 'true' ELSE 'pg_sequence_last_value(''oncebox.turn'') = this_turn' END,
      CASE WHEN sabotage = 'look' THEN 'true' ELSE format('NOT EXISTS (SELECT FROM oncebox.message_%s AS p WHERE p.key = enqueue.key)', (n + 7) % 8) END);
  END LOOP;
  EXECUTE 'CREATE VIEW oncebox.message AS ' || legs;
  EXECUTE format($enqueue$
CREATE FUNCTION oncebox.enqueue(
  key text, subject text, payload bytea, headers jsonb DEFAULT '{}', ordering_key text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  new_id bigint;
  this_turn bigint;
  this_slot integer;
BEGIN
  IF oncebox.is_plain(key, subject, ordering_key, coalesce(headers, '{}'), payload) IS NOT TRUE THEN
    PERFORM oncebox.check_message(key, subject, ordering_key, headers, payload);
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  FOR attempt IN 1 .. 5 LOOP
    new_id := nextval('oncebox.message_id_seq');
    this_turn := pg_sequence_last_value('oncebox.turn');
    this_slot := this_turn %% 8;%s
    IF current_setting('transaction_isolation') <> 'read committed' AND %L <> 'snapshot'
       AND NOT EXISTS (SELECT FROM oncebox.slot AS s WHERE s.number = this_slot AND s.turn = this_turn) THEN
      RAISE EXCEPTION 'the log has turned since this transaction began' USING ERRCODE = '40001';
    END IF;
    %s
    END IF;
    IF FOUND THEN
      IF pg_sequence_last_value('oncebox.relay_asleep') = 1 THEN
        PERFORM oncebox.wake_relay();
      END IF;
      RETURN new_id;
    END IF;
    IF pg_sequence_last_value('oncebox.turn') = this_turn AND oncebox.check_enqueued(key, subject, payload) THEN
      RETURN NULL;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'key "%%" was deleted while it was enqueued', key USING ERRCODE = '40001';
END $$$enqueue$, current_setting('ring.pause'), sabotage, inserts);
END $prototype$;

-- Ends the turn: the next slot takes new messages. No transaction may be in the middle of writing
-- into the slot that is closed, so the lock waits for writers, and they wait for it, 50 ms at most.
-- Before that, the function looks without a lock for transactions that have been writing for
-- longer.
CREATE FUNCTION oncebox.end_turn() RETURNS text
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
  current bigint := pg_sequence_last_value('oncebox.turn');
  closing regclass := format('oncebox.message_%s', current % 8);
  held text;
BEGIN
  PERFORM FROM oncebox.maintenance FOR UPDATE;
  IF NOT EXISTS (SELECT FROM oncebox.slot AS s WHERE s.number = current % 8 AND s.turn = current) THEN
    -- A switch that was cut off after setval: its rows are written now.
    UPDATE oncebox.slot SET closed_xact = pg_current_xact_id() WHERE number = (current + 7) % 8;
    UPDATE oncebox.slot SET turn = current, is_live = true, is_empty = false WHERE number = current % 8;
    RETURN 'repaired';
  END IF;
  IF NOT (SELECT s.is_empty FROM oncebox.slot AS s WHERE s.number = (current + 1) % 8) THEN
    RETURN 'the next slot is not empty';
  END IF;
  SELECT coalesce('process ' || l.pid, 'a prepared transaction') INTO held
  FROM pg_locks AS l
  LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
  WHERE l.relation = closing AND l.mode = 'RowExclusiveLock' AND l.granted
    AND (l.pid IS NULL OR a.xact_start < clock_timestamp() - interval '1 second')
  LIMIT 1;
  IF FOUND THEN
    RETURN held || ' has enqueued and is still open';
  END IF;
  EXECUTE format('LOCK TABLE %s IN SHARE MODE', closing);
  UPDATE oncebox.slot SET closed_xact = pg_current_xact_id() WHERE number = current % 8;
  UPDATE oncebox.slot SET turn = current + 1, is_live = true, is_empty = false, closed_xact = NULL, drained_at = NULL
  WHERE number = (current + 1) % 8;
  PERFORM setval('oncebox.turn', current + 1);
  RETURN 'turned';
EXCEPTION WHEN lock_not_available THEN
  RETURN 'busy';
END $$;

-- Empties the slot after the current one. Here at any age; the product asks first whether all of it
-- is drained, past retention, without an open loss, and keeps a copy of messages set aside.
CREATE FUNCTION oncebox.empty_next() RETURNS text
LANGUAGE plpgsql SET lock_timeout = '300ms' AS $$
DECLARE
  next integer := (pg_sequence_last_value('oncebox.turn') + 1) % 8;
BEGIN
  PERFORM FROM oncebox.maintenance FOR UPDATE;
  EXECUTE format('TRUNCATE oncebox.message_%s', next);
  UPDATE oncebox.slot SET is_empty = true, is_live = false WHERE number = next;
  RETURN 'emptied';
EXCEPTION WHEN lock_not_available THEN
  RETURN 'busy';
END $$;

SELECT :'sabotage' = 'lock' AS no_lock \gset
\if :no_lock
  SELECT replace(pg_get_functiondef('oncebox.end_turn'::regproc), 'IN SHARE MODE', 'IN ACCESS SHARE MODE') AS without \gset
  :without;
\endif
