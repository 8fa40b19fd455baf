-- Look whether a transaction has ended since an earlier look, and how the relay sleeps.
-- $1: the snapshot of the earlier look; NULL when there was none. What was not visible in that
-- snapshot was written by a transaction that is in its list, and then that one has ended; or by a
-- later one, and then xmax has moved. A prepared transaction is open until it is committed or
-- rolled back. One that was rolled back, or enqueued nothing, has ended as well: then the claim
-- that follows finds nothing. Where transactions can be prepared no producer sends NOTIFY: see
-- sleep.sql.
-- Index: none; the row of a sequence. Locking: none.
SELECT
  pg_current_snapshot()::text AS snapshot,
  coalesce(pg_snapshot_xmax(pg_current_snapshot()) > pg_snapshot_xmax($1::text::pg_snapshot), false)
    OR EXISTS (
      SELECT
      FROM pg_snapshot_xip($1::text::pg_snapshot) AS was_open (xact)
      WHERE pg_visible_in_snapshot(was_open.xact, pg_current_snapshot())
    ) AS has_ended,
  a.last_value = 1 AS is_asleep,
  current_setting('max_prepared_transactions') = '0' AS notifies
FROM {schema}.relay_asleep AS a
