-- What the migrator itself needs. Under the migrator's lock, so IF NOT EXISTS does not race.
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.migration (
  version    integer PRIMARY KEY,
  name       text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
