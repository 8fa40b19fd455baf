-- How many messages are parked and dead; counts no more than 100,000 rows.
-- Index: none. Locking: none.
SELECT
  count(*) FILTER (WHERE p.dead_at IS NULL) AS parked,
  count(*) FILTER (WHERE p.dead_at IS NOT NULL) AS dead
FROM (SELECT q.dead_at FROM {schema}.parked AS q LIMIT 100000) AS p
