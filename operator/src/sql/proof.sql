-- Read messages of a lane in the order of their ids, and say of each of a time how it stands, and
-- how its key stands in inboxes of this database: its status there, empty where it is not.
-- $1: the lane; $2: after this id; $3, $4: enqueued at the first time or later, and before the
-- second; $5: messages at most; $6, $7: the scopes and tenants of the inboxes.
-- Index: message_pkey, cursor_pkey, parked_pkey, discarded_pkey, inbox_pkey. Locking: none.
WITH seen AS MATERIALIZED (
  SELECT m.id, m.xact, m.key, m.subject, m.created_at
  FROM {schema}.message AS m
  WHERE m.lane = $1 AND m.id > $2
  ORDER BY m.id
  LIMIT $5
)
SELECT
  s.id,
  s.created_at >= $3 AND s.created_at < $4 AS is_meant,
  CASE WHEN s.created_at >= $3 AND s.created_at < $4 THEN s.key END AS key,
  CASE WHEN s.created_at >= $3 AND s.created_at < $4 THEN s.subject END AS subject,
  CASE
    WHEN NOT (s.created_at >= $3 AND s.created_at < $4) THEN NULL
    WHEN EXISTS (
      SELECT FROM {schema}.discarded AS d
      WHERE d.lane = $1 AND d.id = s.id
      OFFSET 0
    ) THEN 'discarded'
    WHEN p.replay = 0 THEN CASE WHEN p.dead_at IS NULL THEN 'waiting' ELSE 'dead' END
    WHEN s.id <= c.floor
      OR s.id <= c.high AND pg_visible_in_snapshot(s.xact, c.snap)
      OR s.id <= c.high AND c.target IS NOT NULL AND s.id <= c.after AND pg_visible_in_snapshot(s.xact, c.target)
      THEN 'stored'
    ELSE 'waiting'
  END AS state,
  CASE WHEN s.created_at >= $3 AND s.created_at < $4 THEN ARRAY(
    SELECT coalesce(i.status, '')
    FROM unnest($6::text[], $7::text[]) WITH ORDINALITY AS h (scope, tenant, place)
    LEFT JOIN LATERAL (
      SELECT e.status
      FROM {schema}.inbox AS e
      WHERE e.scope = h.scope AND e.tenant = h.tenant AND e.key = s.key
      OFFSET 0
    ) AS i ON true
    ORDER BY h.place
  ) END AS inboxes
FROM seen AS s
CROSS JOIN {schema}.lane_cursor AS c
LEFT JOIN LATERAL (
  SELECT q.replay, q.dead_at
  FROM {schema}.parked AS q
  WHERE q.lane = $1 AND q.id = s.id
  OFFSET 0
) AS p ON true
WHERE c.lane = $1
ORDER BY s.id
