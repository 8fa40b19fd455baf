-- Retention: what each lane had settled at which time, and who deletes.

CREATE TABLE {schema}.milestone (
  lane              smallint NOT NULL,
  number            bigint NOT NULL,
  floor             bigint NOT NULL,
  high              bigint NOT NULL,
  snap              pg_snapshot NOT NULL,
  system_identifier bigint NOT NULL,
  reached_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT milestone_pkey PRIMARY KEY (lane, number)
);
COMMENT ON TABLE {schema}.milestone IS 'Where the cursors stood at some times: what a milestone says was settled then was settled no later than reached_at.';

-- Whoever locks the row maintains; the others go without.
CREATE TABLE {schema}.maintenance (
  only_row boolean NOT NULL DEFAULT true,
  CONSTRAINT maintenance_pkey PRIMARY KEY (only_row),
  CONSTRAINT maintenance_only_row CHECK (only_row)
);
COMMENT ON TABLE {schema}.maintenance IS 'One row, locked by the relay that deletes what retention lets go.';
INSERT INTO {schema}.maintenance DEFAULT VALUES;
