-- How many messages are parked and dead, and how many replays are still to be sent; counts no more
-- than 100,000 rows.
-- Index: none. Locking: none.
SELECT
  count(*) FILTER (WHERE p.dead_at IS NULL AND p.replay = 0) AS parked,
  count(*) FILTER (WHERE p.dead_at IS NOT NULL) AS dead,
  count(*) FILTER (WHERE p.dead_at IS NULL AND p.replay > 0) AS replays
FROM (SELECT q.dead_at, q.replay FROM {schema}.parked AS q LIMIT 100000) AS p
