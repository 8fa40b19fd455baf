-- Move the cursors of claimed lanes; snap NULL keeps the old snapshot.
-- $1: lanes; $2: number of the cursor that was read; $3: floor; $4: high; $5: snap; $6: target; $7:
--   after;
-- $8: reset_until; $9: what streams have acknowledged, NULL keeps what is known.
-- Index: cursor_pkey. Locking: the lanes are locked by claim.sql.
WITH settled AS (
  SELECT *
  FROM unnest(
    $1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::bigint[],
    $9::text[]
  ) AS s (lane, number, floor, high, snap, target, after, reset_until, acknowledged)
),
inserted AS (
  INSERT INTO {schema}.cursor (
    lane, number, floor, high, snap, target, after, reset_until, system_identifier, acknowledged
  )
  SELECT
    s.lane,
    s.number + 1,
    s.floor,
    s.high,
    coalesce(s.snap::pg_snapshot, c.snap),
    s.target::pg_snapshot,
    s.after,
    s.reset_until,
    c.system_identifier,
    coalesce(s.acknowledged::jsonb, c.acknowledged)
  FROM settled AS s
  JOIN {schema}.cursor AS c ON c.lane = s.lane AND c.number = s.number
)
DELETE FROM {schema}.cursor AS c
USING settled AS s
WHERE c.lane = s.lane AND c.number = s.number
