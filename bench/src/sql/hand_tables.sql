-- Sagas as one writes them for one process, without deadlines and without a way back. No
-- parameters.
CREATE TABLE hand_saga (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  business_id text NOT NULL UNIQUE,
  state text NOT NULL DEFAULT 'running',
  data jsonb NOT NULL,
  revision bigint NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE hand_step (
  saga_id bigint NOT NULL REFERENCES hand_saga (id),
  step text NOT NULL,
  state text NOT NULL,
  payload bytea NOT NULL,
  sent_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  answered_at timestamptz,
  PRIMARY KEY (saga_id, step)
)
