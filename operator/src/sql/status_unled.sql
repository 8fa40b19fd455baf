-- Sagas that have not finished and that no process leads: of each graph and orchestrator how many,
-- each state counted to 10,000, and since when. Orchestrators say every 20 seconds which graphs
-- they lead.
-- $1: kinds to look at, at most; $2: seconds after which one that said nothing leads no more.
-- Returns too where participants answer, if a file defines the saga, and the versions of the type
-- that are led.
-- Index: saga_open, from one kind to the next, then its entries; saga_leader_pkey. Locking: none.
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
),
led AS (
  SELECT l.scope, l.fingerprint
  FROM {schema}.saga_leader AS l
  WHERE l.led_at >= clock_timestamp() - make_interval(secs => $2)
)
SELECT
  k.type::text AS type,
  k.version,
  oldest.scope::text AS scope,
  sum(counted.sagas)::bigint AS sagas,
  min(oldest.created_at) AS oldest_at,
  max(last.led_at) AS led_at,
  (SELECT d.reply_to::text FROM {schema}.saga_definition AS d WHERE d.fingerprint = k.fingerprint) AS reply_to,
  ARRAY(
    SELECT DISTINCT d.version
    FROM {schema}.saga_definition AS d
    JOIN led AS l ON l.fingerprint = d.fingerprint AND l.scope = oldest.scope
    WHERE d.type = k.type
    ORDER BY d.version
  ) AS led_versions
FROM kind AS k
CROSS JOIN LATERAL (
  SELECT s.created_at, s.scope
  FROM {schema}.saga AS s
  WHERE s.finished_at IS NULL
    AND s.type = k.type AND s.version = k.version AND s.fingerprint = k.fingerprint AND s.state = k.state
  ORDER BY s.created_at
  LIMIT 1
) AS oldest
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
LEFT JOIN {schema}.saga_leader AS last ON last.scope = oldest.scope AND last.fingerprint = k.fingerprint
WHERE coalesce(last.led_at, oldest.created_at) < clock_timestamp() - make_interval(secs => $2)
GROUP BY k.type, k.version, k.fingerprint, oldest.scope
ORDER BY k.type, k.version, k.fingerprint, oldest.scope
