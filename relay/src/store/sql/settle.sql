-- Move the cursors of claimed lanes; snap NULL keeps the old snapshot.
-- $1: lanes; $2: floor; $3: high; $4: snap; $5: target; $6: after; $7: reset_until.
-- Index: lane_pkey. Locking: the lanes are locked by claim.sql; the update is HOT, no index has these columns.
UPDATE {schema}.lane AS l
SET
  floor = s.floor,
  high = s.high,
  snap = coalesce(s.snap::pg_snapshot, l.snap),
  target = s.target::pg_snapshot,
  after = s.after,
  reset_until = s.reset_until,
  settled_at = clock_timestamp()
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])
  AS s (lane, floor, high, snap, target, after, reset_until)
WHERE l.lane = s.lane
