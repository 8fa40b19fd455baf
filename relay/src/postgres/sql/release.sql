-- Make the first message of each ordering key due now, when nothing before it is left.
-- $1: lanes; $2: ordering keys; $3: whether dead messages block their ordering key.
-- Index: parked_ordering_key, parked_dead_ordering_key. Locking: the lanes are locked by claim.sql.
UPDATE {schema}.parked AS p
SET next_attempt_at = clock_timestamp()
FROM unnest($1::smallint[], $2::text[]) AS s (lane, ordering_key)
CROSS JOIN LATERAL (
  SELECT f.id
  FROM {schema}.parked AS f
  WHERE f.lane = s.lane AND f.ordering_key = s.ordering_key AND f.dead_at IS NULL
  ORDER BY f.id
  LIMIT 1
) AS first
WHERE p.lane = s.lane
  AND p.id = first.id
  AND p.next_attempt_at IS NULL
  AND NOT ($3 AND EXISTS (
    SELECT FROM {schema}.parked AS d
    WHERE d.lane = s.lane AND d.ordering_key = s.ordering_key AND d.dead_at IS NOT NULL AND d.id < first.id
    OFFSET 0
  ))
