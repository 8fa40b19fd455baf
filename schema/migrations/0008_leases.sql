-- Leased mode: the claims that are in progress, and the effects outside the database that they remember.

CREATE TABLE {schema}.inbox_claim (
  scope       varchar(255) NOT NULL,
  tenant      varchar(255) NOT NULL,
  key         varchar(255) NOT NULL,
  fingerprint bytea NOT NULL,
  message_id  bigint,
  owner       uuid NOT NULL,
  epoch       bigint NOT NULL DEFAULT 1,
  state       text NOT NULL DEFAULT 'running',
  lease_until timestamptz NOT NULL,
  attempts    integer NOT NULL DEFAULT 1,
  taken_over  boolean NOT NULL DEFAULT false,
  reason      text,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT inbox_claim_pkey PRIMARY KEY (scope, tenant, key),
  CONSTRAINT inbox_claim_state CHECK (state IN ('running', 'failed', 'unknown')),
  CONSTRAINT inbox_claim_reason CHECK ((state = 'running') = (reason IS NULL)),
  CONSTRAINT inbox_claim_reason_size CHECK (octet_length(reason) BETWEEN 1 AND 1000),
  CONSTRAINT inbox_claim_bounds CHECK (epoch >= 1 AND attempts >= 1)
) WITH (fillfactor = 70);  -- a renewal is an update of no indexed column: it finds room on its page
COMMENT ON TABLE {schema}.inbox_claim IS 'Claims of leased mode that are in progress. When one ends, its row is replaced by one of inbox in the same transaction.';
COMMENT ON COLUMN {schema}.inbox_claim.epoch IS 'Counts the owners. Whatever an owner writes is checked against owner and epoch.';
COMMENT ON COLUMN {schema}.inbox_claim.state IS 'running: an owner works on it; failed: no effect, to be repeated; unknown: an effect may have happened, to be reconciled.';
COMMENT ON COLUMN {schema}.inbox_claim.lease_until IS 'Nobody else may claim the key before, by the database''s clock: the end of the lease, or of the pause after a failure.';
COMMENT ON COLUMN {schema}.inbox_claim.taken_over IS 'The owner took the claim from another whose lease had ended.';

CREATE TABLE {schema}.inbox_effect (
  scope      varchar(255) NOT NULL,
  tenant     varchar(255) NOT NULL,
  key        varchar(255) NOT NULL,
  step       text NOT NULL,
  state      text NOT NULL DEFAULT 'started',
  result     bytea,
  epoch      bigint NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT inbox_effect_pkey PRIMARY KEY (scope, tenant, key, step),
  CONSTRAINT inbox_effect_step_size CHECK (octet_length(step) BETWEEN 1 AND 64),
  CONSTRAINT inbox_effect_state CHECK (state IN ('started', 'done', 'rejected')),
  CONSTRAINT inbox_effect_result CHECK ((state = 'started') = (result IS NULL))
);
COMMENT ON TABLE {schema}.inbox_effect IS 'What claims in progress, and those given up, have done outside this database. Forgotten when the claim ends well.';
COMMENT ON COLUMN {schema}.inbox_effect.state IS 'started: it may have happened; done: it happened; rejected: it never will.';
COMMENT ON COLUMN {schema}.inbox_effect.result IS 'The result as JSON (done), or the reason as text (rejected).';
