-- Run by every migration: it makes missing rows again that the schema cannot do without. A test's
-- cleaner, for example, may have truncated all tables. A lane without a cursor sends its whole log
-- again: nothing is lost, and inboxes absorb the copies.
INSERT INTO {schema}.lane (lane)
SELECT n
FROM generate_series(0, {schema}.lane_count() - 1) AS n
ON CONFLICT DO NOTHING;

DO $$
DECLARE
  made integer;
BEGIN
  INSERT INTO {schema}.cursor (lane, number, system_identifier)
  SELECT l.lane, 1 + coalesce((SELECT max(r.number) FROM {schema}.receipt AS r WHERE r.lane = l.lane), 0), c.system_identifier
  FROM {schema}.lane AS l, pg_control_system() AS c
  WHERE NOT EXISTS (SELECT FROM {schema}.cursor AS k WHERE k.lane = l.lane);
  GET DIAGNOSTICS made = ROW_COUNT;
  IF made > 0 THEN
    RAISE WARNING '% lanes had no cursor, and begin anew', made
      USING HINT = 'Relays send all messages again that the outbox still has; inboxes absorb the copies.';
  END IF;
END $$;

-- The turn goes on in the segment with the newest message: rows that were moved here without table
-- "segment" and the sequence, by a subscription or as data alone, would else be those of a turn
-- long ago, and their keys free. Without its row a segment counts as full of messages that may be
-- due.
DO $$
DECLARE
  this_turn bigint;
  newest_id bigint := 0;
  last_id bigint;
BEGIN
  IF to_regprocedure('{schema}.note_turn()') IS NULL THEN
    RETURN;
  END IF;
  PERFORM {schema}.note_turn();
  this_turn := pg_sequence_last_value('{schema}.turn');
  FOR n IN 0 .. 7 LOOP
    EXECUTE format('SELECT max(newest.id) FROM {schema}.lane AS l CROSS JOIN LATERAL (
      SELECT m.id FROM {schema}.message_%s AS m WHERE m.lane = l.lane ORDER BY m.id DESC LIMIT 1) AS newest', n) INTO last_id;
    INSERT INTO {schema}.segment (number, turn, is_live, is_empty)
    VALUES (n, n - 8, last_id IS NOT NULL, last_id IS NULL)
    ON CONFLICT DO NOTHING;
    -- Of this turn at the latest; the transactions of the others do not matter.
    IF last_id > newest_id AND (SELECT s.turn < 0 OR s.turn = pg_sequence_last_value('{schema}.turn')
                                FROM {schema}.segment AS s WHERE s.number = n) THEN
      newest_id := last_id;
      this_turn := pg_sequence_last_value('{schema}.turn') + (n - pg_sequence_last_value('{schema}.turn') % 8 + 8) % 8;
    END IF;
  END LOOP;
  PERFORM setval('{schema}.turn', this_turn), {schema}.note_turn();
END $$;

INSERT INTO {schema}.maintenance SELECT WHERE NOT EXISTS (SELECT FROM {schema}.maintenance);
INSERT INTO {schema}.inbox_sweep SELECT WHERE NOT EXISTS (SELECT FROM {schema}.inbox_sweep);
INSERT INTO {schema}.outbox SELECT WHERE NOT EXISTS (SELECT FROM {schema}.outbox);
INSERT INTO {schema}.delayed_mover SELECT WHERE NOT EXISTS (SELECT FROM {schema}.delayed_mover);

-- The names of the roles are known from who may use the schema.
INSERT INTO {schema}.installation (role_prefix)
SELECT coalesce(
  (
    SELECT left(r.rolname, -length('_relay'))
    FROM pg_namespace AS s
    CROSS JOIN LATERAL aclexplode(s.nspacl) AS a
    JOIN pg_roles AS r ON r.oid = a.grantee
    WHERE s.nspname = '{name}' AND r.rolname LIKE '%\_relay'
    ORDER BY length(r.rolname) DESC
    LIMIT 1
  ),
  '{name}'
)
WHERE NOT EXISTS (SELECT FROM {schema}.installation);
