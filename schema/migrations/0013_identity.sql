-- Who the outbox is, so that outboxes can share a stream; and ids that never stand below a cursor.

-- Written once. A dump keeps it: what a restored outbox sends again has the same Nats-Msg-Id.
CREATE TABLE {schema}.outbox (
  only_row boolean NOT NULL DEFAULT true,
  identity text NOT NULL DEFAULT left(replace(gen_random_uuid()::text, '-', ''), 12),
  CONSTRAINT outbox_pkey PRIMARY KEY (only_row),
  CONSTRAINT outbox_only_row CHECK (only_row),
  CONSTRAINT outbox_identity CHECK (identity COLLATE "C" ~ '^[0-9a-f]{12}$')
);
COMMENT ON TABLE {schema}.outbox IS 'One row: the identity of this outbox, the first part of each Nats-Msg-Id. Copy it with the messages.';
INSERT INTO {schema}.outbox DEFAULT VALUES;

COMMENT ON COLUMN {schema}.parked.replay IS '0 for a message that was never stored; N for its replay, sent with Nats-Msg-Id outbox/digest/rN/key.';

-- A cursor's floor says of restored rows that they are settled whatever their xact says. A row that
-- is written afterwards with an id that low (the sequence was set back, or did not come with the
-- rows) is not one of them.
CREATE TABLE {schema}.reset (
  lane smallint NOT NULL,
  snap pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
  CONSTRAINT reset_pkey PRIMARY KEY (lane)
);
COMMENT ON TABLE {schema}.reset IS 'When a lane was found to hold messages of another cluster: up to its floor, what is visible in snap is settled or parked.';

INSERT INTO {schema}.reset (lane)
SELECT c.lane
FROM {schema}.lane_cursor AS c
WHERE c.floor > 0 OR c.reset_until IS NOT NULL;

-- The transaction that wrote a row here, which for a restored row is not its xact.
CREATE FUNCTION {schema}.written_by(row_xmin xid) RETURNS xid8
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN greatest(pg_current_xact_id()::text::bigint - age(row_xmin), 3)::text::xid8;

-- Raises the sequence of ids above every cursor and message, and sets aside, to be sent, what was
-- enqueued with ids so low that a cursor calls it settled. Returns nothing to do as NULL. Nothing
-- is half done after a crash, since a sequence that is restarted is part of the transaction. The
-- lock on the sequence waits for each transaction that has drawn an id and lets nobody draw one, so
-- every such row is visible; the function gives up after half a second, for the sake of the producers
-- that wait behind it. Maintenance, lanes, sequence: always in this order, and nobody who holds the
-- sequence waits for a lane.
CREATE FUNCTION {schema}.repair_ids(OUT stood_at bigint, OUT raised_to bigint, OUT set_aside bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
BEGIN
  PERFORM FROM {schema}.maintenance FOR UPDATE;
  PERFORM FROM {schema}.lane AS l ORDER BY l.lane FOR UPDATE;
  -- Changes nothing, but takes the lock.
  ALTER SEQUENCE {schema}.message_id_seq CACHE 1;
  SELECT s.stood_at, s.needed INTO stood_at, raised_to FROM {schema}.message_ids AS s;
  IF stood_at >= raised_to THEN
    stood_at := NULL;
    raised_to := NULL;
    RETURN;
  END IF;
  -- Restored rows were written by a later transaction than their xact, or an earlier one; those of
  -- here by their xact, or a part of it, which has a later id. So more than those of here may be
  -- found: they are sent once more.
  INSERT INTO {schema}.parked (lane, id, ordering_key, attempts, next_attempt_at, error)
  SELECT
    m.lane,
    m.id,
    m.ordering_key,
    0,
    CASE WHEN m.ordering_key IS NULL OR row_number() OVER (PARTITION BY m.lane, m.ordering_key ORDER BY m.id) = 1
      THEN clock_timestamp() END,
    'enqueued with an id below the floor of its lane'
  FROM {schema}.lane_cursor AS c
  CROSS JOIN pg_control_system() AS here
  CROSS JOIN LATERAL (
    SELECT n.lane, n.id, n.ordering_key
    FROM {schema}.message AS n
    WHERE n.lane = c.lane
      AND n.id <= repair_ids.stood_at
      -- While restored rows are drained, and before, their snapshot says nothing of rows that were
      -- written here.
      AND n.id <= greatest(c.floor, CASE
        WHEN c.reset_until IS NOT NULL
          OR c.system_identifier <> here.system_identifier
          OR pg_snapshot_xmax(c.snap) > pg_snapshot_xmax(pg_current_snapshot())
        THEN c.high
      END)
      AND {schema}.written_by(n.xmin) >= n.xact
  ) AS m
  WHERE NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = m.lane AND d.id = m.id)
  ON CONFLICT ON CONSTRAINT parked_pkey DO NOTHING;
  GET DIAGNOSTICS set_aside = ROW_COUNT;
  UPDATE {schema}.reset SET snap = pg_current_snapshot();
  EXECUTE format('ALTER SEQUENCE {schema}.message_id_seq RESTART WITH %s', raised_to + 1);
END $$;

-- The last id that was drawn, and how far ids must have come: less, and new messages would count as
-- settled, or be refused because their ids are taken.
CREATE VIEW {schema}.message_ids AS
SELECT
  CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END AS stood_at,
  coalesce((
    SELECT max(greatest(c.floor, c.high, c.reset_until, newest.id))
    FROM {schema}.lane_cursor AS c
    LEFT JOIN LATERAL (
      SELECT m.id
      FROM {schema}.message AS m
      WHERE m.lane = c.lane
      ORDER BY m.id DESC
      LIMIT 1
    ) AS newest ON true
  ), 0) AS needed
FROM {schema}.message_id_seq AS s;
COMMENT ON VIEW {schema}.message_ids IS 'Where the sequence of ids stands, and where it must stand at least.';
