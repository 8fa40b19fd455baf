-- Make the first message of each ordering key due now, when nothing before it is left.
-- $1: lanes; $2: ordering keys; $3: whether dead messages block their ordering key.
-- Index: parked_ordering_key, parked_dead_ordering_key. MATERIALIZED keeps the planner from looking
-- for the first message once for each message that is parked in the lane.
-- Locking: the lanes are locked by claim.sql.
WITH first AS MATERIALIZED (
  SELECT s.lane, s.ordering_key, f.id
  FROM unnest($1::smallint[], $2::text[]) AS s (lane, ordering_key)
  CROSS JOIN LATERAL (
    SELECT e.id
    FROM {schema}.parked AS e
    WHERE e.lane = s.lane AND e.ordering_key = s.ordering_key AND e.dead_at IS NULL
    ORDER BY e.id
    LIMIT 1
  ) AS f
)
UPDATE {schema}.parked AS p
SET next_attempt_at = clock_timestamp()
FROM first
WHERE p.lane = first.lane
  AND p.id = first.id
  AND p.next_attempt_at IS NULL
  AND NOT ($3 AND EXISTS (
    SELECT FROM {schema}.parked AS d
    WHERE d.lane = first.lane AND d.ordering_key = first.ordering_key AND d.dead_at IS NOT NULL AND d.id < first.id
    OFFSET 0
  ))
