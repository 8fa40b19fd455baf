-- Look at messages of a lane in the order of their ids, and find the settled ones that are
-- selected. $1: the lane; $2: after this id; $3: up to this id; $4: messages to look at, at most;
-- $5: a key; $6: regular expression of a subject; $7: enqueued at this time or later; $8: enqueued
-- before this time; $9: name of the request: messages already asked for under it are left out, and
-- counted apart, as are those whose replay is still to be sent; NULL selects all. Which messages
-- are settled, cursor.rs says; of a lane whose transaction ids come from another cluster, only
-- those up to its floor. Messages that were never stored (parked, or given up) are left out.
-- Index: message_pkey, cursor_pkey, parked_pkey, discarded_pkey, replay_pkey. Locking: none:
-- settled stays settled, and the rest is asked again under the lane's lock.
WITH seen AS MATERIALIZED (
  SELECT m.id, m.xact, m.key, m.subject, m.created_at
  FROM {schema}.message AS m
  WHERE m.lane = $1 AND m.id > $2 AND m.id <= $3
  ORDER BY m.id
  LIMIT $4
),
selected AS MATERIALIZED (
  SELECT
    s.id,
    s.created_at,
    coalesce(n.number, 0) AS replays,
    coalesce(n.request = $9::text, false) AS is_asked_for,
    EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = $1 AND p.id = s.id AND p.dead_at IS NULL
      OFFSET 0
    ) AS is_pending
  FROM seen AS s
  LEFT JOIN LATERAL (
    SELECT r.number, r.request
    FROM {schema}.replay AS r
    WHERE r.lane = $1 AND r.id = s.id
    OFFSET 0
  ) AS n ON true
  CROSS JOIN {schema}.lane_cursor AS c
  CROSS JOIN (SELECT h.system_identifier FROM pg_control_system() AS h OFFSET 0) AS here
  WHERE c.lane = $1
    AND (
      s.id <= c.floor
      OR s.id <= c.high
        AND c.reset_until IS NULL
        AND c.system_identifier = here.system_identifier
        AND pg_snapshot_xmax(c.snap) <= pg_snapshot_xmax(pg_current_snapshot())
        AND pg_visible_in_snapshot(s.xact, c.snap)
    )
    AND ($5::text IS NULL OR s.key = $5)
    AND ($6::text IS NULL OR s.subject COLLATE "C" ~ $6)
    AND ($7::timestamptz IS NULL OR s.created_at >= $7)
    AND ($8::timestamptz IS NULL OR s.created_at < $8)
    AND NOT EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = $1 AND p.id = s.id AND p.replay = 0
      OFFSET 0
    )
    AND NOT EXISTS (
      SELECT FROM {schema}.discarded AS d
      WHERE d.lane = $1 AND d.id = s.id
      OFFSET 0
    )
)
SELECT
  (SELECT max(s.id) FROM seen AS s) AS last_id,
  (SELECT count(*) FROM seen AS s) >= $4 AS is_full,
  (SELECT count(*) FROM selected AS s WHERE s.is_asked_for) AS asked_for,
  (SELECT count(*) FROM selected AS s WHERE s.is_pending AND NOT s.is_asked_for) AS pending,
  coalesce((SELECT array_agg(s.id ORDER BY s.id) FROM selected AS s WHERE NOT (s.is_asked_for OR s.is_pending)), '{}') AS ids,
  coalesce((SELECT array_agg(s.replays ORDER BY s.id) FROM selected AS s WHERE NOT (s.is_asked_for OR s.is_pending)), '{}') AS replays,
  coalesce((SELECT array_agg(coalesce(s.created_at, 'epoch') ORDER BY s.id) FROM selected AS s WHERE NOT (s.is_asked_for OR s.is_pending)), '{}') AS times
