-- Append receipts: where cursors stand, or are about to, with the sequences that streams had
-- acknowledged.
-- $1: lanes; $2: streams; $3: numbers of the cursors; $4: sequences; $5: ids of the messages there,
-- NULL before a lane's first message in a stream; $6: floor; $7: high; $8: snap, NULL for the snap
-- of the cursor that was claimed. Cursors whose snapshot comes from another cluster prove nothing.
-- Of many relays one appends in each second: their clocks do not matter, the database's does. The
-- receipt of a cursor that was claimed is appended only where none of the last ten seconds is there
-- to go back to.
-- Index: cursor_pkey, receipt_pkey. Locking: the lanes are locked by claim.sql.
INSERT INTO {schema}.receipt AS r (
  lane, stream, number, sequence, message_id, floor, high, snap, system_identifier
)
SELECT
  n.lane,
  n.stream,
  n.number,
  n.sequence,
  n.message_id,
  n.floor,
  n.high,
  coalesce(n.snap::pg_snapshot, c.snap),
  c.system_identifier
FROM unnest(
  $1::smallint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::text[]
) AS n (lane, stream, number, sequence, message_id, floor, high, snap)
JOIN {schema}.lane_cursor AS c ON c.lane = n.lane
CROSS JOIN (SELECT s.system_identifier FROM pg_control_system() AS s OFFSET 0) AS here
LEFT JOIN LATERAL (
  SELECT o.at
  FROM {schema}.receipt AS o
  WHERE o.lane = n.lane AND o.stream = n.stream
  ORDER BY o.number DESC
  LIMIT 1
) AS last ON n.message_id IS NOT NULL
CROSS JOIN LATERAL (
  SELECT CASE WHEN n.number = c.number THEN interval '10 seconds' ELSE interval '1 second' END AS pause
) AS due
WHERE c.reset_until IS NULL
  AND c.system_identifier = here.system_identifier
  AND (last.at IS NULL OR last.at NOT BETWEEN clock_timestamp() - due.pause AND clock_timestamp())
ON CONFLICT ON CONSTRAINT receipt_pkey DO NOTHING
