-- The inbox: messages that their handlers park.

CREATE TABLE {schema}.inbox_park (
  scope     text COLLATE "C" NOT NULL,
  tenant    text COLLATE "C" NOT NULL,
  key       text COLLATE "C" NOT NULL,
  message   text COLLATE "C" NOT NULL,
  delivery  bigint NOT NULL,
  attempts  bigint NOT NULL,
  parks     bigint NOT NULL DEFAULT 1,
  reason    text NOT NULL,
  parked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  due_at    timestamptz NOT NULL,
  CONSTRAINT inbox_park_pkey PRIMARY KEY (scope, tenant, key, message),
  CONSTRAINT inbox_park_counts CHECK (delivery >= 1 AND attempts >= 0 AND parks >= 1),
  CONSTRAINT inbox_park_reason_size CHECK (octet_length(reason) BETWEEN 1 AND 1000)
);
COMMENT ON TABLE {schema}.inbox_park IS 'Messages that a handler has parked. JetStream counts each delivery; here is which of them were no attempts. A row outlives its message''s end for a while.';
COMMENT ON COLUMN {schema}.inbox_park.message IS 'Which copy: stream, sequence, and when the stream stored it; empty for one that is in no stream.';
COMMENT ON COLUMN {schema}.inbox_park.delivery IS 'The number of the last delivery that was parked.';
COMMENT ON COLUMN {schema}.inbox_park.attempts IS 'How many deliveries before it were attempts.';
COMMENT ON COLUMN {schema}.inbox_park.parked_at IS 'Since when it has been parked again and again.';
CREATE INDEX inbox_park_due ON {schema}.inbox_park (scope, due_at);

-- A claim under a lease that is parked was no attempt either.
ALTER TABLE {schema}.inbox_claim
  DROP CONSTRAINT inbox_claim_bounds,
  ADD CONSTRAINT inbox_claim_bounds CHECK (epoch >= 1 AND attempts >= 0);
