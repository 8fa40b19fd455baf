-- The inbox: how often a message was tried, which JetStream's count of deliveries does not tell.

CREATE TABLE {schema}.inbox_attempt (
  scope      text COLLATE "C" NOT NULL,
  tenant     text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  message    text COLLATE "C" NOT NULL,
  failures   bigint NOT NULL DEFAULT 0,
  begun      bigint NOT NULL DEFAULT 0,
  touched_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT inbox_attempt_pkey PRIMARY KEY (scope, tenant, key, message),
  CONSTRAINT inbox_attempt_counts CHECK (failures >= 0 AND begun >= 0)
);
COMMENT ON TABLE {schema}.inbox_attempt IS 'Messages that failed, or were delivered again before they had ended. A row outlives its message''s end for a while.';
COMMENT ON COLUMN {schema}.inbox_attempt.message IS 'Which copy: stream, sequence, and when the stream stored it; empty for one that is in no stream.';
COMMENT ON COLUMN {schema}.inbox_attempt.failures IS 'How many attempts have failed.';
COMMENT ON COLUMN {schema}.inbox_attempt.begun IS 'How many runs have begun since and left no trace: the first beside others, each further one alone among its like.';
CREATE INDEX inbox_attempt_touched ON {schema}.inbox_attempt (scope, touched_at);
COMMENT ON COLUMN {schema}.inbox_park.attempts IS 'How many attempts had failed before it.';
COMMENT ON TABLE {schema}.inbox_park IS 'Messages that a handler has parked. A row outlives its message''s end for a while.';
