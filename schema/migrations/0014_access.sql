-- Which programs work with the database, whose roles may use it, and producers with two-phase
-- commit.

ALTER TABLE {schema}.migration ADD COLUMN oldest_program integer;
COMMENT ON COLUMN {schema}.migration.oldest_program IS 'Programs that were built for this version and later ones work with the schema as it is after this migration.';

CREATE TABLE {schema}.installation (
  only_row    boolean NOT NULL DEFAULT true,
  role_prefix text NOT NULL,
  CONSTRAINT installation_pkey PRIMARY KEY (only_row),
  CONSTRAINT installation_only_row CHECK (only_row)
);
COMMENT ON TABLE {schema}.installation IS 'One row: what belongs to this database alone.';
COMMENT ON COLUMN {schema}.installation.role_prefix IS 'What the names of the four roles begin with. Roles are the cluster''s: a name of this database''s own keeps other databases'' members out.';
-- As it was until now. A fresh installation gets names of its own before this transaction ends.
INSERT INTO {schema}.installation (role_prefix) VALUES ('{name}');

-- After an enqueue: wake a relay that sleeps. Clearing the mark here means that one producer pays
-- for NOTIFY, not every producer while no relay is there to clear it. Polling remains the truth;
-- this is a hint and may be lost. Where transactions can be prepared nobody is notified: PREPARE
-- TRANSACTION refuses a transaction that has sent a NOTIFY, and which one will be prepared is not
-- known here. Relays look often there instead.
CREATE OR REPLACE FUNCTION {schema}.wake_relay() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM setval('{schema}.relay_asleep', 0);
  IF current_setting('max_prepared_transactions') = '0' THEN
    PERFORM pg_notify('{name}', '');
  END IF;
END $$;

-- Deletes messages of which a milestone says that they were settled, and what is known of them;
-- tells how many. Whoever prunes by hand needs no DELETE on the log: what was never sent, is parked
-- or is to be replayed stays, whatever is asked for. prune.sql decides what is old enough.
CREATE FUNCTION {schema}.delete_settled(lanes smallint[], ids bigint[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH reached AS MATERIALIZED (
    SELECT l.lane, s.floor, s.high, s.snap, x.snap AS reset_snap
    FROM (SELECT DISTINCT w.lane FROM unnest($1) AS w (lane)) AS l
    CROSS JOIN LATERAL (
      SELECT m.floor, m.high, m.snap, m.system_identifier
      FROM {schema}.milestone AS m
      WHERE m.lane = l.lane
      ORDER BY m.number DESC
      LIMIT 1
    ) AS s
    CROSS JOIN (SELECT c.system_identifier FROM pg_control_system() AS c OFFSET 0) AS here
    LEFT JOIN {schema}.reset AS x ON x.lane = l.lane
    WHERE s.system_identifier = here.system_identifier
      AND pg_snapshot_xmax(s.snap) <= pg_snapshot_xmax(pg_current_snapshot())
  ),
  settled AS MATERIALIZED (
    SELECT m.lane, m.id
    FROM unnest($1, $2) AS w (lane, id)
    JOIN {schema}.message AS m ON m.lane = w.lane AND m.id = w.id
    JOIN reached AS r ON r.lane = m.lane
    WHERE CASE
        WHEN m.id > r.floor THEN m.id <= r.high AND pg_visible_in_snapshot(m.xact, r.snap)
        -- A restored row, or one that was sent after it had been found below the floor.
        ELSE r.reset_snap IS NULL
          OR {schema}.written_by(m.xmin) < m.xact
          OR pg_visible_in_snapshot({schema}.written_by(m.xmin), r.reset_snap)
          OR EXISTS (SELECT FROM {schema}.replay AS p WHERE p.lane = m.lane AND p.id = m.id)
      END
      AND NOT EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = m.lane AND p.id = m.id)
  ),
  forgotten AS (
    DELETE FROM {schema}.discarded AS d
    USING settled AS s
    WHERE d.lane = s.lane AND d.id = s.id
  ),
  unnumbered AS (
    DELETE FROM {schema}.replay AS p
    USING settled AS s
    WHERE p.lane = s.lane AND p.id = s.id
  ),
  deleted AS (
    DELETE FROM {schema}.message AS m
    USING settled AS s
    WHERE m.lane = s.lane AND m.id = s.id
    RETURNING m.id
  )
  SELECT count(*) FROM deleted
$$;
COMMENT ON FUNCTION {schema}.delete_settled(smallint[], bigint[]) IS 'Deletes settled messages, and no others; returns how many.';
