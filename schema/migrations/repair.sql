-- Run by every migration: rows that the schema cannot do without, which somebody has deleted; a
-- test's cleaner, perhaps, that truncates all tables. A lane without a cursor sends its whole log
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

-- Without its row a segment counts as full of messages that may be due.
DO $$
DECLARE
  this_turn bigint := coalesce(pg_sequence_last_value('{schema}.turn'), 0);
  is_filled boolean;
BEGIN
  IF to_regprocedure('{schema}.segment_name(smallint)') IS NULL THEN
    RETURN;
  END IF;
  IF pg_sequence_last_value('{schema}.turn') IS NULL THEN
    PERFORM setval('{schema}.turn', 0);
  END IF;
  FOR n IN 0 .. 8 LOOP
    IF NOT EXISTS (SELECT FROM {schema}.segment AS s WHERE s.number = n) THEN
      EXECUTE format('SELECT EXISTS (SELECT FROM {schema}.message_%s)', {schema}.segment_name(n::smallint)) INTO is_filled;
      INSERT INTO {schema}.segment (number, turn, is_live, is_empty)
      VALUES (n, CASE WHEN n = this_turn % 8 THEN this_turn ELSE -1 END, n = this_turn % 8 OR is_filled, n <> this_turn % 8 AND NOT is_filled);
    END IF;
  END LOOP;
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
