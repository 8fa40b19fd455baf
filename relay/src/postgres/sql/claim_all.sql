-- Claim lanes even if nothing is due in them, for a pass that reads in them more than once. Returns
-- the columns of claim.sql.
-- $1: how many lanes at most; $2: lanes to leave out.
-- Index: cursor_pkey, parked_due, loss_resending.
-- Locking: as in claim.sql; so read.sql looks again under the lock here, too.
SELECT
  l.lane,
  c.number,
  c.floor,
  c.high,
  c.target::text AS target,
  c.after,
  c.reset_until,
  c.system_identifier <> here.system_identifier
    OR c.reset_until IS NULL AND pg_snapshot_xmax(c.snap) > pg_snapshot_xmax(pg_current_snapshot()) AS is_foreign,
  clock_timestamp() AS read_at,
  c.acknowledged::text AS acknowledged,
  EXISTS (
    SELECT FROM {schema}.loss AS o
    WHERE o.lane = l.lane AND o.resending_at IS NOT NULL AND o.ended_at IS NULL
  ) AS is_resending,
  pg_current_snapshot()::text AS snapshot,
  EXISTS (
    SELECT FROM {schema}.parked AS p
    WHERE p.lane = l.lane AND p.next_attempt_at <= statement_timestamp()
    ORDER BY p.next_attempt_at
    OFFSET 0
  ) AS parked_due,
  (
    SELECT json_agg(json_build_object('kind', h.kind, 'value', h.value, 'rate', h.rate, 'subjects', h.subjects, 'ordering_key', h.ordering_key))::text
    FROM {schema}.pause AS h
    WHERE h.ends_at > clock_timestamp()
  ) AS pauses,
  ring.turn AS single_turn
FROM {schema}.lane AS l
CROSS JOIN LATERAL (
  SELECT *
  FROM {schema}.cursor AS newest
  WHERE newest.lane = l.lane
  ORDER BY newest.number DESC
  LIMIT 1
) AS c
CROSS JOIN (
  SELECT s.system_identifier
  FROM pg_control_system() AS s
  WHERE NOT EXISTS (
    SELECT FROM {schema}.home AS h
    WHERE h.system_identifier <> s.system_identifier
      OR h.database_oid <> (SELECT d.oid::bigint FROM pg_database AS d WHERE d.datname = current_database())
  )
  OFFSET 0
) AS here
CROSS JOIN (
  SELECT CASE WHEN count(*) FILTER (WHERE NOT s.is_live OR s.number = p.turn % 8) = 8 THEN p.turn END AS turn
  FROM (SELECT pg_sequence_last_value('{schema}.turn') AS turn OFFSET 0) AS p
  CROSS JOIN {schema}.segment AS s
  GROUP BY p.turn
) AS ring
WHERE l.lane <> ALL ($2::smallint[])
ORDER BY l.lane
LIMIT $1
FOR UPDATE OF l SKIP LOCKED
