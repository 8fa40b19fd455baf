-- What an operator gives up, and which settings the relays run with.

-- A replay that is given up is not one that was sent.
ALTER TABLE {schema}.replay ADD COLUMN cancelled integer;
COMMENT ON COLUMN {schema}.replay.cancelled IS 'The number of the last replay that an operator gave up before it was sent; NULL = none.';

ALTER TABLE {schema}.audit
  DROP CONSTRAINT audit_action,
  ADD CONSTRAINT audit_action CHECK (action IN ('retry', 'discard', 'replay', 'prune', 'cancel'));

-- Why a message is set aside, in a word that programs know; error says it to people. NULL: a relay of an older version.
ALTER TABLE {schema}.parked ADD COLUMN cause text;
COMMENT ON COLUMN {schema}.parked.cause IS 'What error is about, in a word that does not change, such as no-stream; behind = waits behind its ordering key, replay = to be replayed.';

-- A row for each relay, written when it starts and every minute; nothing per message.
CREATE TABLE {schema}.relay (
  id                uuid NOT NULL DEFAULT gen_random_uuid(),
  retention_seconds float8,
  dead_blocks       boolean NOT NULL,
  seen_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT relay_pkey PRIMARY KEY (id),
  CONSTRAINT relay_retention CHECK (retention_seconds > 0)
);
COMMENT ON TABLE {schema}.relay IS 'The relays that were at work lately, with the settings that all of them should share. A row that is not renewed is deleted.';
COMMENT ON COLUMN {schema}.relay.retention_seconds IS 'How long settled messages are kept; NULL is for ever.';
COMMENT ON COLUMN {schema}.relay.dead_blocks IS 'Whether a dead message holds back its ordering key (on_dead = block).';
