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
