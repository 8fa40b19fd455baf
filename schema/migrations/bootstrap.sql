-- The schema and the table that the migrator itself needs; under its lock, so asking first does not
-- race. Not IF NOT EXISTS: that would ask for the right to create schemas although an administrator
-- has created this one for us, and say so at every start.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '{name}') THEN
    CREATE SCHEMA {schema};
  END IF;
  IF to_regclass('{schema}.migration') IS NULL THEN
    CREATE TABLE {schema}.migration (
      version        integer PRIMARY KEY,
      name           text NOT NULL,
      applied_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
      oldest_program integer
    );
    COMMENT ON COLUMN {schema}.migration.oldest_program IS 'Programs that were built for this version and later ones work with the schema as it is after this migration.';
  END IF;
END $$;

-- The table was emptied, and the schema is there: its version stands in a comment as well.
DO $$
DECLARE
  versions text[] := regexp_match(obj_description('{schema}.migration'::regclass), 'version (\d+), oldest program (\d+)');
BEGIN
  IF versions IS NOT NULL AND NOT EXISTS (SELECT FROM {schema}.migration) THEN
    INSERT INTO {schema}.migration (version, name, oldest_program)
    VALUES (versions[1]::integer, 'found again', versions[2]::integer);
    RAISE WARNING 'table migration was empty, and the schema is at version %', versions[1]
      USING HINT = 'Keep this schema out of what empties the tables of your tests.';
  END IF;
END $$;
