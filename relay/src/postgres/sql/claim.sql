-- Claim the lanes that have something due, longest unserved first, and lock them until the
-- transaction ends. Returns where each seems to stand.
-- $1: how many lanes at most; $2: lanes to leave out; $3: the turn whose segment alone is read,
-- NULL for all segments. The answer says which turn that is now, NULL when several segments are
-- live. If it is not $3, all lanes are claimed: read.sql then reads nothing, and the next claim
-- knows. read_at, by the clock that stamps messages, lets the relay tell their age without trusting
-- its own clock. A lane is foreign when its transaction ids come from another cluster: a restored
-- dump, or an xmax from the future. A copy of the outbox, whose home is another database, has
-- nothing to claim: see 0004_operations.sql.
-- Index: cursor_pkey, message_pkey for new rows, message_lane_xact_id for late rows, parked_due,
-- loss_resending.
-- Each OFFSET 0 keeps the planner from a plan that reads a whole table to answer for one lane, and
-- each ORDER BY from the wrong index, which walks all settled messages: in an empty table both cost
-- the same, and the plan stays when the table has grown. That is also why a late transaction is a
-- range of one: an equality would make its order meaningless. The row comparison with floor means
-- no more than m.id > floor; written so, it does not look like half of a narrow range to a planner
-- without statistics.
-- Locking: SKIP LOCKED, so any number of relays share the lanes without a leader; a relay that dies
-- loses its locks with its connection. This statement judges by its snapshot, which may be older
-- than the lock, which lanes have messages due and where each stands: that is only a suspicion.
-- read.sql looks again, with a snapshot taken under the lock, and a lane whose cursor has moved is
-- left alone.
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
WHERE l.lane <> ALL ($2::smallint[]) AND (
  $3::bigint IS NOT NULL AND ring.turn IS DISTINCT FROM $3::bigint
  OR c.target IS NOT NULL
  OR c.reset_until IS NOT NULL
  OR c.system_identifier <> here.system_identifier
  OR pg_snapshot_xmax(c.snap) > pg_snapshot_xmax(pg_current_snapshot())
  OR EXISTS (
    SELECT FROM {schema}.{log} AS m
    WHERE m.lane = l.lane AND m.id > c.high
    ORDER BY m.id
    OFFSET 0
  )
  OR EXISTS (
    SELECT FROM {schema}.{log} AS m
    WHERE m.lane = l.lane
      AND m.xact >= pg_snapshot_xmax(c.snap)
      AND m.xact < pg_snapshot_xmax(pg_current_snapshot())
      AND (m.id, m.lane) > (c.floor, 32767::smallint)
      AND m.id <= c.high
    ORDER BY m.xact
    OFFSET 0
  )
  OR EXISTS (
    SELECT
    FROM pg_snapshot_xip(c.snap) AS ended (xact)
    CROSS JOIN LATERAL (
      SELECT FROM {schema}.{log} AS m
      WHERE m.lane = l.lane
        AND m.xact >= ended.xact
        AND m.xact <= ended.xact
        AND (m.id, m.lane) > (c.floor, 32767::smallint)
        AND m.id <= c.high
      ORDER BY m.xact
      OFFSET 0
    ) AS late
    -- Only transactions that have ended since: the rows of one still open are many, perhaps, and
    -- invisible.
    WHERE pg_visible_in_snapshot(ended.xact, pg_current_snapshot())
  )
  OR EXISTS (
    SELECT FROM {schema}.parked AS p
    WHERE p.lane = l.lane AND p.next_attempt_at <= statement_timestamp()
    ORDER BY p.next_attempt_at
    OFFSET 0
  )
)
ORDER BY c.settled_at, l.lane
LIMIT $1
FOR UPDATE OF l SKIP LOCKED
