-- What the migrator itself needs; under its lock, so asking first does not race. Not IF NOT EXISTS: that would ask for
-- the right to create schemas although an administrator has created this one for us, and say so at every start.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '{name}') THEN
    CREATE SCHEMA {schema};
  END IF;
  IF to_regclass('{schema}.migration') IS NULL THEN
    CREATE TABLE {schema}.migration (
      version    integer PRIMARY KEY,
      name       text NOT NULL,
      applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
  END IF;
END $$;
