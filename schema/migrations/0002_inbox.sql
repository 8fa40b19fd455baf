-- The inbox: one row per consumed key, written in the handler's transaction, and the dead letters.

CREATE TABLE {schema}.inbox (
  scope       text NOT NULL,
  tenant      text NOT NULL,
  key         text NOT NULL,
  fingerprint bytea NOT NULL,
  status      text NOT NULL,
  outcome     bytea,
  message_id  bigint,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT inbox_pkey PRIMARY KEY (scope, tenant, key),
  CONSTRAINT inbox_scope_size CHECK (octet_length(scope) BETWEEN 1 AND 255),
  CONSTRAINT inbox_tenant_size CHECK (octet_length(tenant) <= 255),
  CONSTRAINT inbox_key_size CHECK (octet_length(key) BETWEEN 1 AND 255),
  CONSTRAINT inbox_fingerprint_size CHECK (octet_length(fingerprint) = 32),
  CONSTRAINT inbox_status CHECK (status IN ('completed', 'rejected', 'dead')),
  CONSTRAINT inbox_outcome_size CHECK (octet_length(outcome) <= 1048576)
);
COMMENT ON TABLE {schema}.inbox IS 'Consumed keys. A committed row means that the key was handled; status says how it ended.';
COMMENT ON COLUMN {schema}.inbox.outcome IS 'The reply as JSON (completed, rejected; NULL stands for null), or the reason as text (dead).';

CREATE TABLE {schema}.dead_letter (
  id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  scope           text NOT NULL,
  tenant          text NOT NULL,
  key             text,
  subject         text NOT NULL,
  headers         jsonb NOT NULL,
  payload         bytea NOT NULL,
  stream          text,
  stream_sequence bigint,
  stored_at       timestamptz,
  deliveries      bigint NOT NULL,
  reason          text NOT NULL,
  created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT dead_letter_reason_size CHECK (octet_length(reason) BETWEEN 1 AND 1000),
  CONSTRAINT dead_letter_origin CHECK ((stream IS NULL) = (stream_sequence IS NULL) AND (stream IS NULL) = (stored_at IS NULL)),
  CONSTRAINT dead_letter_once UNIQUE (scope, stream, stream_sequence, stored_at)
);
COMMENT ON TABLE {schema}.dead_letter IS 'Messages that a consumer gave up on, whole, with the reason.';
COMMENT ON COLUMN {schema}.dead_letter.key IS 'NULL when the message has no valid key.';
COMMENT ON COLUMN {schema}.dead_letter.stored_at IS 'When the stream stored the message: a recreated stream counts its sequence from 1 again.';

CREATE TABLE {schema}.consumer_position (
  stream         text NOT NULL,
  durable        text NOT NULL,
  stream_created text NOT NULL,
  next_sequence  bigint NOT NULL,
  takeovers      integer NOT NULL,
  updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT consumer_position_pkey PRIMARY KEY (stream, durable),
  CONSTRAINT consumer_position_bounds CHECK (next_sequence >= 1 AND takeovers >= 0)
);
COMMENT ON TABLE {schema}.consumer_position IS 'Where the strictly ordered consumer of a stream was last continued. Written before its JetStream consumer is recreated, so that a crash between the two loses nothing.';
COMMENT ON COLUMN {schema}.consumer_position.takeovers IS 'How many processes took over in a row without getting past next_sequence: counted as deliveries of that message.';
