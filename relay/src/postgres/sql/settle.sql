-- Move the cursors of claimed lanes; snap NULL keeps the old snapshot.
-- $1: lanes; $2: number of the cursor that was read; $3: floor; $4: high; $5: snap; $6: target; $7:
--   after;
-- $8: reset_until; $9: the sequences that streams have acknowledged, NULL keeps the known ones.
-- Index: cursor_pkey. A comparison with an array of one keeps the planner from a join that walks
-- the whole index, with all that is dead in it: right after a vacuum it takes the table for empty.
-- Locking: the lanes are locked by claim.sql.
WITH replaced AS (
  DELETE FROM {schema}.cursor AS c
  USING unnest(
    $1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::bigint[],
    $9::text[]
  ) AS s (lane, number, floor, high, snap, target, after, reset_until, acknowledged)
  WHERE c.lane = ANY (ARRAY[s.lane]) AND c.number = ANY (ARRAY[s.number])
  RETURNING
    s.*,
    c.snap AS old_snap,
    c.system_identifier,
    c.acknowledged AS old_acknowledged
)
INSERT INTO {schema}.cursor (
  lane, number, floor, high, snap, target, after, reset_until, system_identifier, acknowledged
)
SELECT
  r.lane,
  r.number + 1,
  r.floor,
  r.high,
  coalesce(r.snap::pg_snapshot, r.old_snap),
  r.target::pg_snapshot,
  r.after,
  r.reset_until,
  r.system_identifier,
  coalesce(r.acknowledged::jsonb, r.old_acknowledged)
FROM replaced AS r
