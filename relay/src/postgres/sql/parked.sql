-- How many messages are parked and dead, and how many replays are still to be sent; counts no more
-- than 100,000 rows. And how many losses of streams were not sent again, one for each lane, and how
-- many pauses there are. And for how long the turn of the log should have ended: it takes a sixth
-- of the shortest retention time of the relays that are at work.
-- Index: none, of few rows. Locking: none.
SELECT
  count(*) FILTER (WHERE p.dead_at IS NULL AND p.replay = 0) AS parked,
  count(*) FILTER (WHERE p.dead_at IS NOT NULL) AS dead,
  count(*) FILTER (WHERE p.dead_at IS NULL AND p.replay > 0) AS replays,
  (SELECT count(*) FROM {schema}.loss AS l WHERE l.resending_at IS NULL) AS losses,
  (SELECT count(*) FROM {schema}.pause AS h WHERE h.ends_at > clock_timestamp()) AS pauses,
  coalesce((
    SELECT greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM s.began_at) - min(r.retention_seconds) / 6, 0)
    FROM {schema}.segment AS s
    CROSS JOIN {schema}.relay AS r
    WHERE s.number = pg_sequence_last_value('{schema}.turn') % 8
      AND r.seen_at BETWEEN clock_timestamp() - interval '3 minutes' AND clock_timestamp()
    GROUP BY s.began_at
  ), 0)::float8 AS turn_late_seconds
FROM (SELECT q.dead_at, q.replay FROM {schema}.parked AS q LIMIT 100000) AS p
