-- What operators do to dead messages, replays, and the record of both.

-- Which replay of its message a parked row is: 0 for the message itself, N for the copy sent as `key;r=N`.
ALTER TABLE {schema}.parked
  ADD COLUMN replay integer NOT NULL DEFAULT 0 CONSTRAINT parked_replay CHECK (replay >= 0);
COMMENT ON COLUMN {schema}.parked.replay IS '0 for a message that was never stored; N for its replay, sent with Nats-Msg-Id key;r=N.';
COMMENT ON TABLE {schema}.parked IS 'Messages set aside: next_attempt_at set = looked at again then, and sent if it is the first of its ordering key; dead_at set = dead; neither = waits behind its ordering key.';

-- Dead messages apart from those that are still to be sent: a relay that lets ordering keys go on must not walk the
-- dead ones of a key for each message of it, and one that does not must find the next dead one at once.
DROP INDEX {schema}.parked_ordering_key;
CREATE INDEX parked_ordering_key ON {schema}.parked (lane, ordering_key, id)
  WHERE ordering_key IS NOT NULL AND dead_at IS NULL;
CREATE INDEX parked_dead_ordering_key ON {schema}.parked (lane, ordering_key, id)
  WHERE ordering_key IS NOT NULL AND dead_at IS NOT NULL;
CREATE INDEX parked_dead ON {schema}.parked (lane, id) WHERE dead_at IS NOT NULL;

CREATE TABLE {schema}.discarded (
  lane smallint NOT NULL,
  id   bigint NOT NULL,
  CONSTRAINT discarded_pkey PRIMARY KEY (lane, id)
);
COMMENT ON TABLE {schema}.discarded IS 'Messages that an operator gave up: never published, not by a replay either. Goes with the message.';

CREATE TABLE {schema}.replay (
  lane         smallint NOT NULL,
  id           bigint NOT NULL,
  number       integer NOT NULL,
  request      text NOT NULL,
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT replay_pkey PRIMARY KEY (lane, id),
  CONSTRAINT replay_number CHECK (number >= 1),
  CONSTRAINT replay_request_size CHECK (octet_length(request) BETWEEN 1 AND 255)
);
COMMENT ON TABLE {schema}.replay IS 'How often a message was replayed, and by which request last, so that a request that was cut off can go on. Goes with the message.';

CREATE TABLE {schema}.audit (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  happened_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  database_user text NOT NULL DEFAULT session_user,
  operator      text,
  note          text,
  action        text NOT NULL,
  lane          smallint,
  message_id    bigint,
  key           text,
  subject       text,
  reason        text,
  messages      bigint NOT NULL DEFAULT 1,
  CONSTRAINT audit_action CHECK (action IN ('retry', 'discard', 'replay', 'prune')),
  CONSTRAINT audit_operator_size CHECK (octet_length(operator) BETWEEN 1 AND 255),
  CONSTRAINT audit_note_size CHECK (octet_length(note) BETWEEN 1 AND 1000),
  CONSTRAINT audit_message CHECK ((key IS NULL) = (action = 'prune')),
  CONSTRAINT audit_messages CHECK (messages >= 1)
);
COMMENT ON TABLE {schema}.audit IS 'What operators did: a row for each message and action. Never deleted by Oncebox.';
COMMENT ON COLUMN {schema}.audit.operator IS 'Who it was by their own word (--by); database_user is who the database knows.';
COMMENT ON COLUMN {schema}.audit.reason IS 'Why the message was dead; for a replay the name of the request.';
CREATE INDEX audit_key ON {schema}.audit (key);
