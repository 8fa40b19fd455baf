-- Inboxes with dead letters: how many each has, when the newest came and why, among the newest
--   letters; and how many messages wait for them, to 1,000.
-- $1: letters to look at, at most; $2: inboxes to return.
-- Index: dead_letter_pkey, backwards; inbox_behind_line. Locking: none.
WITH looked_at AS MATERIALIZED (
  SELECT d.id, d.scope, d.created_at, d.reason
  FROM {schema}.dead_letter AS d
  ORDER BY d.id DESC
  LIMIT $1
)
SELECT
  h.scope::text AS scope,
  count(*) AS letters,
  (SELECT count(*) FROM looked_at) >= $1 AS is_capped,
  max(h.created_at) AS newest_at,
  (
    SELECT count(*)
    FROM (SELECT FROM {schema}.inbox_behind AS b WHERE b.scope = h.scope LIMIT $1) AS b
  ) AS behind,
  (array_agg(h.reason ORDER BY h.id DESC))[1] AS reason
FROM looked_at AS h
GROUP BY h.scope
ORDER BY count(*) DESC, h.scope
LIMIT $2
