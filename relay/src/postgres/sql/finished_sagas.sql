-- Sagas that finished in the last minute, by type and state; the newest 10,000 are counted.
-- Index: saga_finished_at, which has all of it, from its end. Locking: none.
SELECT f.type::text AS type, f.state::text AS state, count(*)::bigint AS sagas
FROM (
  SELECT s.type, s.state
  FROM {schema}.saga AS s
  WHERE s.finished_at > (SELECT clock_timestamp() - interval '1 minute')
  ORDER BY s.finished_at DESC
  LIMIT 10000
) AS f
GROUP BY f.type, f.state
