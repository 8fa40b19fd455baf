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

CREATE TABLE {schema}.dead_letter (
  id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  scope           text NOT NULL,
  tenant          text NOT NULL,
  key             text,
  subject         text NOT NULL,
  headers         jsonb NOT NULL,
  payload         bytea NOT NULL,
  stream          text NOT NULL,
  stream_sequence bigint NOT NULL,
  deliveries      bigint NOT NULL,
  reason          text NOT NULL,
  created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT dead_letter_reason_size CHECK (octet_length(reason) BETWEEN 1 AND 1000),
  CONSTRAINT dead_letter_once UNIQUE (scope, stream, stream_sequence)
);
COMMENT ON TABLE {schema}.dead_letter IS 'Messages that a consumer gave up on, whole, with the reason.';
