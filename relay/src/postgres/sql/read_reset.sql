-- Read the messages that are due, by the old snapshot, in lanes whose transaction ids come from
-- another cluster.
-- $1: lanes, claimed by this transaction; $2: messages at most per lane; $3: bytes at most per
-- lane; $4, $5: as in read.sql, whose columns these are. Within the old rows the old ids still
-- compare; a row above reset_until belongs to this cluster and waits.
-- Index: message_pkey, parked_ordering_key, parked_dead_ordering_key. Locking: none, as in
--   read.sql.
SELECT
  l.lane,
  m.id,
  m.key,
  m.subject,
  m.ordering_key,
  CASE WHEN m.headers <> '{}' THEN {schema}.headers_text(m.headers) END AS headers,
  CASE WHEN octet_length(m.payload) <= $5 THEN m.payload END AS payload,
  m.created_at,
  m.ordering_key IS NOT NULL AND (
    EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = l.lane AND p.ordering_key = m.ordering_key AND p.dead_at IS NULL
      OFFSET 0
    )
    OR $4 AND EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = l.lane AND p.ordering_key = m.ordering_key AND p.dead_at IS NOT NULL
      OFFSET 0
    )
  ) AS blocked,
  pg_current_snapshot()::text AS snapshot,
  octet_length(m.payload) AS payload_bytes
FROM {schema}.lane_cursor AS l
CROSS JOIN LATERAL (
  SELECT
    due.*,
    sum(octet_length(due.payload)) OVER (ORDER BY due.id ROWS UNBOUNDED PRECEDING) - octet_length(due.payload) AS bytes_before
  FROM (
    SELECT d.id, d.key, d.subject, d.ordering_key, d.headers, d.payload, d.created_at
    FROM {schema}.log AS d
    WHERE d.lane = l.lane
      AND d.id > l.floor
      AND d.id <= l.reset_until
      AND (
        d.id > l.high
        OR NOT pg_visible_in_snapshot(d.xact, l.snap)
          AND (l.target IS NULL OR d.id > l.after OR NOT pg_visible_in_snapshot(d.xact, l.target))
      )
    ORDER BY d.id
    LIMIT $2
  ) AS due
) AS m
WHERE l.lane = ANY ($1) AND m.bytes_before < $3
