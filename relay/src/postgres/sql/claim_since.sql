-- Claim the lanes into which something has come since an earlier snapshot, in which nothing was
-- due: at a trickle far cheaper than claim.sql, which asks where each lane stands. Returns the
-- columns of claim.sql, and how many such lanes there are: more than were claimed when somebody
-- else has locked some. A row without a lane when none was claimed. Messages that become due in
-- another way (a parked message, a lane that is sent again) are left to claim.sql, which a relay at
-- rest asks every 250 ms, or more rarely.
-- $1: how many lanes at most; $2: lanes to leave out; $3: xmax of the snapshot; $4: the
-- transactions open in it.
-- Index: message_lane_xact_id, cursor_pkey, parked_due, loss_resending. ORDER BY and OFFSET 0 as in
-- claim.sql; a range of one transaction, since an equality would make the order meaningless.
-- Locking: as in claim.sql. This, too, is only a suspicion: read.sql looks again under the lock.
WITH come AS MATERIALIZED (
  SELECT l.lane
  FROM {schema}.lane AS l
  WHERE l.lane <> ALL ($2::smallint[]) AND (
    EXISTS (
      SELECT FROM {schema}.message AS m
      WHERE m.lane = l.lane
        AND m.xact >= $3::text::xid8
        AND m.xact < pg_snapshot_xmax(pg_current_snapshot())
      ORDER BY m.xact
      OFFSET 0
    )
    OR cardinality($4::text[]) > 0 AND EXISTS (
      SELECT
      FROM unnest($4::text[]::xid8[]) AS ended (xact)
      CROSS JOIN LATERAL (
        SELECT FROM {schema}.message AS m
        WHERE m.lane = l.lane AND m.xact >= ended.xact AND m.xact <= ended.xact
        ORDER BY m.xact
        OFFSET 0
      ) AS late
      WHERE pg_visible_in_snapshot(ended.xact, pg_current_snapshot())
    )
  )
),
claimed AS MATERIALIZED (
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
    ) AS pauses
  FROM come
  CROSS JOIN LATERAL (
    SELECT *
    FROM {schema}.cursor AS newest
    WHERE newest.lane = come.lane
    ORDER BY newest.number DESC
    LIMIT 1
  ) AS c
  CROSS JOIN (SELECT s.system_identifier FROM pg_control_system() AS s OFFSET 0) AS here
  JOIN {schema}.lane AS l ON l.lane = come.lane
  ORDER BY c.settled_at, l.lane
  LIMIT $1
  FOR UPDATE OF l SKIP LOCKED
)
SELECT
  c.*,
  t.come
FROM (SELECT count(*) AS come FROM come) AS t
LEFT JOIN claimed AS c ON true
