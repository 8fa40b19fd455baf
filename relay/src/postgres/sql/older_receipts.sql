-- Read receipts of a lane, the newest first, that can be gone back to.
-- $1: the lane; $2: the stream; $3: below this number; $4: how many at most.
-- Index: receipt_pkey. Locking: none.
SELECT r.lane, r.number, r.sequence, r.message_id
FROM {schema}.receipt AS r
CROSS JOIN (SELECT s.system_identifier FROM pg_control_system() AS s OFFSET 0) AS here
WHERE r.lane = $1::smallint
  AND r.stream = $2::text
  AND r.number < $3::bigint
  AND r.system_identifier = here.system_identifier
  AND pg_snapshot_xmax(r.snap) <= pg_snapshot_xmax(pg_current_snapshot())
ORDER BY r.number DESC
LIMIT $4
