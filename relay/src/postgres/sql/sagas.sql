-- Sagas that have not finished, by type and state: how many, each kind of them (of one type,
-- version and state) counted to 10,000, and how old the oldest is.
-- $1: kinds to look at, at most. Index: saga_open, from one kind to the next, then its entries.
-- Locking: none.
WITH RECURSIVE kind AS (
  (
    SELECT s.type, s.version, s.fingerprint, s.state, 1 AS place
    FROM {schema}.saga AS s
    WHERE s.finished_at IS NULL
    ORDER BY s.type, s.version, s.fingerprint, s.state
    LIMIT 1
  )
  UNION ALL
  SELECT next.type, next.version, next.fingerprint, next.state, k.place + 1
  FROM kind AS k
  CROSS JOIN LATERAL (
    SELECT s.type, s.version, s.fingerprint, s.state
    FROM {schema}.saga AS s
    WHERE s.finished_at IS NULL
      AND (s.type, s.version, s.fingerprint, s.state) > (k.type, k.version, k.fingerprint, k.state)
    ORDER BY s.type, s.version, s.fingerprint, s.state
    LIMIT 1
  ) AS next
  WHERE k.place < $1
)
SELECT
  k.type::text AS type,
  k.state,
  sum(counted.sagas)::bigint AS sagas,
  coalesce(max(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM oldest.created_at), 0)), 0)::float8 AS oldest_seconds
FROM kind AS k
CROSS JOIN LATERAL (
  SELECT count(*) AS sagas
  FROM (
    SELECT
    FROM {schema}.saga AS s
    WHERE s.finished_at IS NULL
      AND s.type = k.type AND s.version = k.version AND s.fingerprint = k.fingerprint AND s.state = k.state
    LIMIT 10000
  ) AS n
) AS counted
LEFT JOIN LATERAL (
  SELECT s.created_at
  FROM {schema}.saga AS s
  WHERE s.finished_at IS NULL
    AND s.type = k.type AND s.version = k.version AND s.fingerprint = k.fingerprint AND s.state = k.state
  ORDER BY s.created_at
  LIMIT 1
) AS oldest ON true
GROUP BY k.type, k.state
