-- Have some messages tried that wait with others, the longest waiting first: see
-- delivery/breaker.rs.
-- $1: lanes; $2: the obstacles that they wait for; $3: how many of each. Those that are not tried
-- for now have a due time more than ten minutes ahead; every other pause is shorter.
-- Index: parked_waits_for, parked_pkey. Locking: the lanes are locked by claim.sql or
-- claim_lane.sql.
UPDATE {schema}.parked AS p
SET next_attempt_at = statement_timestamp()
FROM unnest($1::smallint[], $2::text[], $3::bigint[]) AS s (lane, waits_for, messages)
CROSS JOIN LATERAL (
  SELECT w.id
  FROM {schema}.parked AS w
  WHERE w.lane = s.lane
    AND w.waits_for = s.waits_for
    AND w.next_attempt_at > statement_timestamp() + interval '10 minutes'
  ORDER BY w.next_attempt_at
  LIMIT s.messages
) AS waiting
WHERE p.lane = s.lane AND p.id = waiting.id
