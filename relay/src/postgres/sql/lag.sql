-- How far each lane lags, at the same cost for any backlog. Returns the age of the oldest message
-- due in seconds (0 when nothing is, or an operator has paused the first 100 of the lane), how many
-- messages are due, and whether that number is exact, as it is up to 10,000 in all lanes together.
-- Above that it is estimated: rows above high from samples of 32 parts of their ids, late ones as
-- far as they were looked at. Due are the rows that cursor.rs names: rows above high; of those up
-- to high the rows that snap does not see, and during a drain up to `after` the rows that its
-- target does not see either. In a lane of another cluster every row has been committed.
-- Index: message_pkey for new rows, message_lane_xact_id for late ones, both without the table
-- where it is vacuumed; each LIMIT and ORDER BY keeps the planner from another way, and the row
-- comparison from an estimate of few rows, as claim.sql explains. Locking: none.
WITH stand AS MATERIALIZED (
  SELECT
    l.lane,
    l.floor,
    l.high,
    l.snap,
    l.target,
    l.after,
    l.reset_until IS NOT NULL
      OR l.system_identifier <> here.system_identifier
      OR pg_snapshot_xmax(l.snap) > pg_snapshot_xmax(pg_current_snapshot()) AS is_foreign
  FROM {schema}.lane_cursor AS l
  CROSS JOIN (SELECT s.system_identifier FROM pg_control_system() AS s OFFSET 0) AS here
),
-- Above low and up to high, rows that snap does not see are due.
slice AS MATERIALIZED (
  SELECT s.lane, s.snap, greatest(s.floor, s.after) AS low, s.high, s.is_foreign
  FROM stand AS s
  UNION ALL
  SELECT s.lane, s.target, s.floor, s.after, s.is_foreign
  FROM stand AS s
  WHERE s.target IS NOT NULL AND s.after > s.floor
),
counted AS MATERIALIZED (
  SELECT n.lane, count(*) AS messages
  FROM (
    SELECT s.lane
    FROM stand AS s
    CROSS JOIN LATERAL (
      SELECT m.id
      FROM {schema}.{log} AS m
      WHERE m.lane = s.lane AND m.id > s.high
      ORDER BY m.id
      LIMIT 10001
    ) AS m
    LIMIT 10001
  ) AS n
  GROUP BY n.lane
),
bound AS MATERIALIZED (
  SELECT
    c.total <= 10000 AS is_exact,
    -- The number of index entries to look at for late rows: new rows with the same transaction ids
    -- may stand before them, twice in a drain.
    CASE WHEN c.total <= 10000 THEN 40001 ELSE 10000 / s.slices + 1 END AS looked_at_max,
    greatest(256 / s.slices, 4) AS sample
  FROM (SELECT coalesce(sum(c.messages), 0) AS total FROM counted AS c) AS c
  CROSS JOIN (SELECT greatest(count(*), 1) AS slices FROM slice) AS s
),
late AS MATERIALIZED (
  SELECT e.lane, count(*) FILTER (WHERE e.is_late) AS messages, count(*) AS looked_at
  FROM (
    SELECT s.lane, true AS is_late
    FROM slice AS s
    CROSS JOIN LATERAL pg_snapshot_xip(s.snap) AS ended (xact)
    CROSS JOIN LATERAL (
      SELECT m.id
      FROM {schema}.{log} AS m
      WHERE m.lane = s.lane AND m.xact >= ended.xact AND m.xact <= ended.xact AND m.id > s.low AND m.id <= s.high
      ORDER BY m.xact
      LIMIT 40001
    ) AS m
    -- Only transactions that have ended since: the rows of one still open are many, perhaps, and
    -- invisible.
    WHERE s.is_foreign OR pg_visible_in_snapshot(ended.xact, pg_current_snapshot())
    UNION ALL
    SELECT s.lane, m.id <= s.high
    FROM slice AS s
    CROSS JOIN LATERAL (
      SELECT m.id
      FROM {schema}.{log} AS m
      WHERE m.lane = s.lane
        AND m.xact >= pg_snapshot_xmax(s.snap)
        AND m.xact < CASE WHEN s.is_foreign THEN '18446744073709551615'::xid8 ELSE pg_snapshot_xmax(pg_current_snapshot()) END
        AND (m.id, m.lane) > (s.low, 32767::smallint)
      -- A late row's transaction began when the lane was read, so it stands at the front, and a
      -- whole backlog may come after it.
      ORDER BY m.xact, m.id
      LIMIT (SELECT b.looked_at_max FROM bound AS b)
    ) AS m
    LIMIT 40001
  ) AS e
  GROUP BY e.lane
),
sampled AS MATERIALIZED (
  SELECT
    p.lane,
    sum(CASE WHEN seen.messages < p.sample THEN seen.messages
      ELSE seen.messages * (p.high - p.low) / greatest(seen.last_id - p.low, 1) END)::bigint AS messages
  FROM (
    SELECT
      s.lane,
      b.sample,
      s.high + (newest.id - s.high) * part.number / 32 AS low,
      s.high + (newest.id - s.high) * (part.number + 1) / 32 AS high
    FROM bound AS b
    CROSS JOIN stand AS s
    CROSS JOIN LATERAL (
      SELECT m.id
      FROM {schema}.{log} AS m
      WHERE m.lane = s.lane AND m.id > s.high
      ORDER BY m.id DESC
      LIMIT 1
    ) AS newest
    CROSS JOIN generate_series(0, 31) AS part (number)
    WHERE NOT b.is_exact
  ) AS p
  CROSS JOIN LATERAL (
    SELECT count(*) AS messages, max(m.id) AS last_id
    FROM (
      SELECT m.id
      FROM {schema}.{log} AS m
      WHERE m.lane = p.lane AND m.id > p.low AND m.id <= p.high
      ORDER BY m.id
      LIMIT (SELECT b.sample FROM bound AS b)
    ) AS m
  ) AS seen
  GROUP BY p.lane
),
oldest AS MATERIALIZED (
  SELECT s.lane, least(min(late.created_at), min(ended.created_at)) AS created_at
  FROM slice AS s
  LEFT JOIN LATERAL (
    SELECT x.created_at
    FROM (
      SELECT m.id, m.created_at
      FROM {schema}.{log} AS m
      WHERE m.lane = s.lane
        AND m.xact >= pg_snapshot_xmax(s.snap)
        AND m.xact < CASE WHEN s.is_foreign THEN '18446744073709551615'::xid8 ELSE pg_snapshot_xmax(pg_current_snapshot()) END
      ORDER BY m.xact, m.id
      LIMIT 100
    ) AS x
    WHERE x.id > s.low AND x.id <= s.high
    LIMIT 1
  ) AS late ON true
  LEFT JOIN LATERAL (
    SELECT min(x.created_at) AS created_at
    FROM pg_snapshot_xip(s.snap) AS past (xact)
    CROSS JOIN LATERAL (
      SELECT m.created_at
      FROM {schema}.{log} AS m
      WHERE m.lane = s.lane AND m.xact >= past.xact AND m.xact <= past.xact AND m.id > s.low AND m.id <= s.high
      ORDER BY m.xact, m.id
      LIMIT 1
    ) AS x
    WHERE s.is_foreign OR pg_visible_in_snapshot(past.xact, pg_current_snapshot())
  ) AS ended ON true
  GROUP BY s.lane
)
SELECT
  s.lane,
  coalesce(
    extract(epoch FROM clock_timestamp())
      - extract(epoch FROM least(fresh.created_at, o.created_at)),
    0
  )::float8 AS lag_seconds,
  CASE WHEN b.is_exact THEN coalesce(c.messages, 0) ELSE coalesce(p.messages, 0) END + coalesce(l.messages, 0) AS backlog_messages,
  b.is_exact AND (SELECT coalesce(sum(e.looked_at), 0) <= 40000 FROM late AS e) AS is_exact
FROM stand AS s
CROSS JOIN bound AS b
LEFT JOIN counted AS c ON c.lane = s.lane
LEFT JOIN sampled AS p ON p.lane = s.lane
LEFT JOIN late AS l ON l.lane = s.lane
LEFT JOIN oldest AS o ON o.lane = s.lane
LEFT JOIN LATERAL (
  SELECT x.created_at
  FROM (
    SELECT m.id, m.created_at, m.subject, m.ordering_key
    FROM {schema}.{log} AS m
    WHERE m.lane = s.lane AND m.id > s.high
    ORDER BY m.id
    LIMIT 100
  ) AS x
  WHERE NOT EXISTS (
    SELECT
    FROM {schema}.pause AS h
    WHERE h.rate IS NULL
      AND h.ends_at > clock_timestamp()
      AND (x.ordering_key = h.ordering_key OR EXISTS (
        SELECT
        FROM unnest(h.subjects) AS p (pattern)
        -- A pattern of NATS as a regular expression: all but its wildcards is escaped.
        WHERE x.subject COLLATE "C" ~ (
          '^' || replace(replace(regexp_replace(p.pattern, '([^A-Za-z0-9*>])', '\\\1', 'g'), '*', '[^.]+'), '>', '.+') || '$'
        )
      ))
  )
  ORDER BY x.id
  LIMIT 1
) AS fresh ON true
ORDER BY s.lane
