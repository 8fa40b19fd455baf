-- How many messages are parked and dead, and how many replays are still to be sent; counts no more
-- than 100,000 rows. And how many losses of streams nobody has had sent again, one for each lane,
-- and of pauses.
-- Index: none, of few rows. Locking: none.
SELECT
  count(*) FILTER (WHERE p.dead_at IS NULL AND p.replay = 0) AS parked,
  count(*) FILTER (WHERE p.dead_at IS NOT NULL) AS dead,
  count(*) FILTER (WHERE p.dead_at IS NULL AND p.replay > 0) AS replays,
  (SELECT count(*) FROM {schema}.loss AS l WHERE l.resending_at IS NULL) AS losses,
  (SELECT count(*) FROM {schema}.pause AS h WHERE h.ends_at > clock_timestamp()) AS pauses
FROM (SELECT q.dead_at, q.replay FROM {schema}.parked AS q LIMIT 100000) AS p
