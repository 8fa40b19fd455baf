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
