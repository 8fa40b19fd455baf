-- The inbox: batches, what operators do with dead letters, and retention.

CREATE TABLE {schema}.inbox_batch_end (
  xact xid8 NOT NULL,
  CONSTRAINT inbox_batch_end_pkey PRIMARY KEY (xact),
  CONSTRAINT inbox_batch_end_empty CHECK (false)
);
COMMENT ON TABLE {schema}.inbox_batch_end IS 'Always empty.';

CREATE TABLE {schema}.inbox_batch (
  xact xid8 NOT NULL DEFAULT pg_current_xact_id(),
  CONSTRAINT inbox_batch_pkey PRIMARY KEY (xact),
  CONSTRAINT inbox_batch_is_committed_by_the_inbox_only FOREIGN KEY (xact)
    REFERENCES {schema}.inbox_batch_end (xact) DEFERRABLE INITIALLY DEFERRED
);
COMMENT ON TABLE {schema}.inbox_batch IS 'Always empty when committed: each batch inserts a row when it begins and deletes it right before its COMMIT. A COMMIT in between, by a handler, fails on the foreign key, which nothing fulfils.';

-- What is done with a dead letter is recorded with its scope; it need not have a key.
ALTER TABLE {schema}.audit
  ADD COLUMN scope text,
  DROP CONSTRAINT audit_message,
  ADD CONSTRAINT audit_message CHECK (scope IS NOT NULL OR (key IS NULL) = (action = 'prune'));
COMMENT ON COLUMN {schema}.audit.scope IS 'Who gave the message up, for a dead letter of an inbox; message_id is the letter''s id then.';

-- Retention: how long each consumer keeps its keys, and how far the deletion of older ones has come.
CREATE TABLE {schema}.inbox_scope (
  scope             text NOT NULL,
  retention_seconds double precision,
  registered_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT inbox_scope_pkey PRIMARY KEY (scope),
  CONSTRAINT inbox_scope_retention CHECK (retention_seconds > 0)
);
COMMENT ON TABLE {schema}.inbox_scope IS 'The consumers of this database, as their processes registered them when they started.';
COMMENT ON COLUMN {schema}.inbox_scope.retention_seconds IS 'How long a key is kept at least; NULL is for ever.';

CREATE TABLE {schema}.inbox_sweep (
  only_row    boolean NOT NULL DEFAULT true,
  next_block  bigint NOT NULL DEFAULT 0,
  finished_at timestamptz,
  CONSTRAINT inbox_sweep_pkey PRIMARY KEY (only_row),
  CONSTRAINT inbox_sweep_only_row CHECK (only_row),
  CONSTRAINT inbox_sweep_block CHECK (next_block >= 0)
);
COMMENT ON TABLE {schema}.inbox_sweep IS 'One row, locked by the process that deletes keys older than their retention. next_block: where in the table it goes on; finished_at: when it last came to the end.';
INSERT INTO {schema}.inbox_sweep DEFAULT VALUES;
