-- Note that a lane's transaction ids come from another cluster (a restored dump), and up to which id that is so.
-- $1: the lane, claimed by this transaction.
-- No row comes back when the claim was mistaken: its snapshot may be older than the lane it locked, whose snapshot
-- then seems to lie in the future. This statement's snapshot is younger than the lock.
-- A foreign row is visible although its xact has not happened here yet. Rows up to the highest such id were all
-- restored: no transaction of this cluster is still about to commit an id below it. Rows of this cluster come after.
-- Index: message_pkey. Locking: the lane is locked by claim.sql.
UPDATE {schema}.lane AS l
SET
  system_identifier = c.system_identifier,
  reset_until = greatest(l.high, l.reset_until, (
    SELECT max(m.id)
    FROM {schema}.message AS m
    WHERE m.lane = l.lane
      AND m.id > l.high
      AND NOT pg_visible_in_snapshot(m.xact, pg_current_snapshot())
  ))
FROM pg_control_system() AS c
WHERE l.lane = $1
  AND (
    l.system_identifier <> c.system_identifier
    OR pg_snapshot_xmax(l.snap) > pg_snapshot_xmax(pg_current_snapshot())
  )
RETURNING l.reset_until
