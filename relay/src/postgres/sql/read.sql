-- Read the messages that are due in the lanes that this transaction has locked, with the snapshot
-- they are read in, the number of the cursor that it was read with, and this transaction's id (on
-- the first row of each lane, at least). A lane in which nothing is due has one row without a
-- message. Rows come in no order: the caller sorts them, which costs less since they are nearly
-- sorted.
-- $1: messages at most per lane; $2: bytes at most per lane (one message always comes); $3: whether
-- dead messages block their ordering key; $4: bytes of a payload at most. A larger one is NULL
-- here: payload.sql reads it in pieces, if there is room for it and the server takes it; $5: the
-- turn whose segment alone is read, NULL for all. If by now another segment may hold a message that
-- is due, there is no row at all: else its messages would be settled unread. The turn is looked up
-- after the snapshot was taken, and a message of another turn is visible only if that had begun
-- before. Late rows come first, since their ids are not above high; then new rows, in the order of
-- their ids. The lock shows in xmax, so this statement is sent along with claim.sql, whose answer
-- it need not know.
-- Index: cursor_pkey, message_lane_xact_id for late rows, message_pkey for new rows,
-- parked_ordering_key and parked_dead_ordering_key; OFFSET 0 and ORDER BY keep the planner from
-- walking the whole log by id to find the few late rows, as claim.sql explains.
-- Locking: none; the lanes are locked by claim.sql, this statement's snapshot is younger than the
-- lock, and message is append-only.
SELECT
  l.lane,
  m.id,
  m.key,
  m.subject,
  m.ordering_key,
  CASE WHEN m.headers <> '{}' THEN {schema}.headers_text(m.headers) END AS headers,
  CASE WHEN octet_length(m.payload) <= $4 THEN m.payload END AS payload,
  m.created_at,
  m.ordering_key IS NOT NULL AND (
    EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = l.lane AND p.ordering_key = m.ordering_key AND p.dead_at IS NULL
      OFFSET 0
    )
    OR $3 AND EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = l.lane AND p.ordering_key = m.ordering_key AND p.dead_at IS NOT NULL
      OFFSET 0
    )
  ) AS blocked,
  CASE WHEN m.bytes_before > 0 THEN NULL ELSE pg_current_snapshot()::text END AS snapshot,
  octet_length(m.payload) AS payload_bytes,
  CASE WHEN m.bytes_before > 0 THEN NULL ELSE l.number END AS number,
  CASE WHEN m.bytes_before > 0 THEN NULL ELSE pg_current_xact_id_if_assigned()::text END AS xact
FROM {schema}.lane AS locked
CROSS JOIN LATERAL (
  SELECT *
  FROM {schema}.cursor AS newest
  WHERE newest.lane = locked.lane
  ORDER BY newest.number DESC
  LIMIT 1
) AS l
LEFT JOIN LATERAL (
  SELECT
    due.*,
    sum(octet_length(due.payload)) OVER (ORDER BY due.id ROWS UNBOUNDED PRECEDING) - octet_length(due.payload) AS bytes_before
  FROM (
    (
      SELECT late.*
      FROM (
        (
          SELECT a.id, a.key, a.subject, a.ordering_key, a.headers, a.payload, a.created_at
          FROM {schema}.{log} AS a
          WHERE a.lane = l.lane
            AND a.xact >= pg_snapshot_xmax(l.snap)
            AND a.xact < pg_snapshot_xmax(pg_current_snapshot())
            AND (a.id, a.lane) > (greatest(l.floor, l.after), 32767::smallint)
            AND a.id <= l.high
            AND (l.target IS NULL OR pg_visible_in_snapshot(a.xact, l.target))
          ORDER BY a.xact
          OFFSET 0
        )
        UNION ALL
        SELECT b.*
        FROM pg_snapshot_xip(l.snap) AS ended (xact)
        CROSS JOIN LATERAL (
          SELECT c.id, c.key, c.subject, c.ordering_key, c.headers, c.payload, c.created_at
          FROM {schema}.{log} AS c
          WHERE c.lane = l.lane
            AND c.xact >= ended.xact
            AND c.xact <= ended.xact
            AND (c.id, c.lane) > (greatest(l.floor, l.after), 32767::smallint)
            AND c.id <= l.high
          ORDER BY c.xact
          OFFSET 0
        ) AS b
        WHERE pg_visible_in_snapshot(ended.xact, coalesce(l.target, pg_current_snapshot()))
        OFFSET 0
      ) AS late
      ORDER BY late.id
      LIMIT $1
    )
    UNION ALL
    (
      SELECT n.id, n.key, n.subject, n.ordering_key, n.headers, n.payload, n.created_at
      FROM {schema}.{log} AS n
      WHERE n.lane = l.lane AND n.id > l.high AND l.target IS NULL
      ORDER BY n.id
      LIMIT $1
    )
    ORDER BY id
    LIMIT $1
  ) AS due
) AS m ON l.reset_until IS NULL AND m.bytes_before < $2
CROSS JOIN (
  SELECT CASE WHEN count(*) FILTER (WHERE NOT s.is_live OR s.number = p.turn % 8) = 8 THEN p.turn END AS turn
  FROM (SELECT pg_sequence_last_value('{schema}.turn') AS turn OFFSET 0) AS p
  CROSS JOIN {schema}.segment AS s
  GROUP BY p.turn
) AS ring
WHERE ($5::bigint IS NULL OR ring.turn = $5::bigint) AND locked.xmax = pg_current_xact_id_if_assigned()::xid
