-- How far each lane is behind, without counting rows.
-- Returns the age of the oldest message due in seconds (0 when nothing is) and an estimate of how many are: lanes share
-- one sequence, so a lane holds about one id in as many as there are lanes.
-- Index: message_pkey, message_lane_xact_id. Locking: none.
SELECT
  l.lane,
  coalesce(extract(epoch FROM clock_timestamp() - least(fresh.created_at, late.created_at, ended.created_at)), 0)::float8 AS lag_seconds,
  ceil(greatest(newest.id - l.high, 0)::float8 / count(*) OVER ())::bigint AS backlog_messages
FROM {schema}.lane_cursor AS l
LEFT JOIN LATERAL (
  SELECT m.created_at
  FROM {schema}.message AS m
  WHERE m.lane = l.lane AND m.id > l.high
  ORDER BY m.id
  LIMIT 1
) AS fresh ON true
LEFT JOIN LATERAL (
  SELECT m.id
  FROM {schema}.message AS m
  -- Not below: what was pruned there is still in the index for a while.
  WHERE m.lane = l.lane AND m.id > l.high
  ORDER BY m.id DESC
  LIMIT 1
) AS newest ON true
LEFT JOIN LATERAL (
  SELECT x.created_at
  FROM (
    SELECT m.id, m.created_at
    FROM {schema}.message AS m
    WHERE m.lane = l.lane
      AND m.xact >= pg_snapshot_xmax(l.snap)
      AND m.xact < pg_snapshot_xmax(pg_current_snapshot())
    ORDER BY m.xact, m.id
    -- A late row's transaction began when the lane was read, so it stands at the front; behind it all of a backlog may.
    LIMIT 100
  ) AS x
  WHERE x.id > greatest(l.floor, l.after) AND x.id <= l.high
  LIMIT 1
) AS late ON true
LEFT JOIN LATERAL (
  SELECT min(x.created_at) AS created_at
  FROM pg_snapshot_xip(l.snap) AS past (xact)
  CROSS JOIN LATERAL (
    SELECT m.created_at
    FROM {schema}.message AS m
    WHERE m.lane = l.lane AND m.xact = past.xact AND m.id > greatest(l.floor, l.after) AND m.id <= l.high
    ORDER BY m.id
    LIMIT 1
  ) AS x
  WHERE pg_visible_in_snapshot(past.xact, pg_current_snapshot())
) AS ended ON true
ORDER BY l.lane
