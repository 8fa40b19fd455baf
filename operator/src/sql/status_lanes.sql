-- When each lane was last settled, and whether rows of another cluster are drained in it
-- (cursors.sql).
-- Index: cursor_pkey. Locking: none.
SELECT
  c.lane,
  c.settled_at,
  (extract(epoch FROM clock_timestamp()) - extract(epoch FROM c.settled_at))::float8 AS settled_seconds,
  c.reset_until IS NOT NULL
    OR c.system_identifier <> here.system_identifier
    OR pg_snapshot_xmax(c.snap) > pg_snapshot_xmax(pg_current_snapshot()) AS is_restored
FROM {schema}.lane_cursor AS c
CROSS JOIN (SELECT s.system_identifier FROM pg_control_system() AS s OFFSET 0) AS here
ORDER BY c.lane
