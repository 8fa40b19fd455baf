-- Note that a lane's transaction ids come from another cluster (a restored dump), and up to which
-- id that is so. Its milestones and receipts are forgotten: their snapshots mean nothing here. The
-- present rows are noted, by a snapshot of this cluster: a row that is written later is none of the
-- restored ones, however low its id.
-- $1: the lane, claimed by this transaction; $2: its cursor's number. A foreign row is visible
-- although its xact has not happened here yet. Rows up to the highest such id were all restored: no
-- transaction of this cluster is still about to commit an id below it. Rows of this cluster come
-- after.
-- Index: cursor_pkey, message_pkey, milestone_pkey, receipt_pkey, reset_pkey. Locking: the lane is
-- locked by claim.sql.
WITH forgotten AS (
  DELETE FROM {schema}.milestone AS s
  WHERE s.lane = $1
),
unproven AS (
  DELETE FROM {schema}.receipt AS r
  WHERE r.lane = $1
),
noted AS (
  INSERT INTO {schema}.reset AS r (lane)
  VALUES ($1)
  ON CONFLICT ON CONSTRAINT reset_pkey DO UPDATE SET snap = excluded.snap
)
UPDATE {schema}.cursor AS c
SET
  system_identifier = here.system_identifier,
  reset_until = greatest(c.high, c.reset_until, (
    SELECT max(m.id)
    FROM {schema}.log AS m
    WHERE m.lane = c.lane
      AND m.id > c.high
      AND NOT pg_visible_in_snapshot(m.xact, pg_current_snapshot())
  ))
FROM pg_control_system() AS here
WHERE c.lane = $1 AND c.number = $2
RETURNING c.reset_until
