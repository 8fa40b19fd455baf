-- Read the messages that have come since an earlier snapshot into lanes that this transaction has
-- locked and read before, with the snapshot that they are read in. One row without a message says
-- that none has.
-- $1: lanes; $2: their floors; $3: xmax of the earlier snapshot; $4: the transactions open in it;
-- $5: messages at most, in all; $6: bytes of a payload at most, a larger one is NULL; $7: whether
-- dead messages block their ordering key; $8: as $5 of read.sql: no row at all when other segments
-- are to be read.
-- A row up to the floor came from another cluster, and its transaction id means nothing here.
-- Index: message_lane_xact_id, parked_ordering_key, parked_dead_ordering_key; ORDER BY, OFFSET 0
-- and the row comparison as in claim.sql.
-- Locking: none; the lanes are locked by claim_all.sql, and message is append-only.
SELECT
  m.lane,
  m.id,
  m.key,
  m.subject,
  m.ordering_key,
  CASE WHEN m.headers <> '{}' THEN {schema}.headers_text(m.headers) END AS headers,
  CASE WHEN octet_length(m.payload) <= $6::int THEN m.payload END AS payload,
  m.created_at,
  m.ordering_key IS NOT NULL AND (
    EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = m.lane AND p.ordering_key = m.ordering_key AND p.dead_at IS NULL
      OFFSET 0
    )
    OR $7::bool AND EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = m.lane AND p.ordering_key = m.ordering_key AND p.dead_at IS NOT NULL
      OFFSET 0
    )
  ) AS blocked,
  now.snapshot,
  octet_length(m.payload) AS payload_bytes
FROM (
  SELECT pg_current_snapshot()::text AS snapshot
  FROM (
    SELECT CASE WHEN count(*) FILTER (WHERE NOT s.is_live OR s.number = p.turn % 8) = 8 THEN p.turn END AS turn
    FROM (SELECT pg_sequence_last_value('{schema}.turn') AS turn OFFSET 0) AS p
    CROSS JOIN {schema}.segment AS s
    GROUP BY p.turn
  ) AS ring
  WHERE $8::bigint IS NULL OR ring.turn = $8::bigint
  OFFSET 0
) AS now
LEFT JOIN LATERAL (
  SELECT come.*
  FROM unnest($1::smallint[], $2::bigint[]) AS l (lane, floor)
  CROSS JOIN LATERAL (
    SELECT a.*
    FROM (
      SELECT n.lane, n.id, n.key, n.subject, n.ordering_key, n.headers, n.payload, n.created_at
      FROM {schema}.{log} AS n
      WHERE n.lane = l.lane
        AND n.xact >= $3::text::xid8
        AND n.xact < pg_snapshot_xmax(pg_current_snapshot())
        AND (n.id, n.lane) > (l.floor, 32767::smallint)
      ORDER BY n.xact
      OFFSET 0
    ) AS a
    UNION ALL
    SELECT b.*
    FROM unnest($4::text[]::xid8[]) AS ended (xact)
    CROSS JOIN LATERAL (
      SELECT n.lane, n.id, n.key, n.subject, n.ordering_key, n.headers, n.payload, n.created_at
      FROM {schema}.{log} AS n
      WHERE n.lane = l.lane
        AND n.xact >= ended.xact
        AND n.xact <= ended.xact
        AND (n.id, n.lane) > (l.floor, 32767::smallint)
      ORDER BY n.xact
      OFFSET 0
    ) AS b
    WHERE pg_visible_in_snapshot(ended.xact, pg_current_snapshot())
  ) AS come
  LIMIT $5
) AS m ON true
