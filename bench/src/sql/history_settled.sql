-- All messages are settled, and the ring stands in its seventh turn: six full segments, and the
-- current one half full. No parameters, no index. Locks: all rows of cursor and segment.
WITH turned AS (
  UPDATE {schema}.segment SET
    turn = number, is_live = number = 6, is_empty = number > 6,
    drained_at = CASE WHEN number < 6 THEN clock_timestamp() END
  WHERE number < 8
)
UPDATE {schema}.cursor SET
  high = (SELECT s.last_value FROM {schema}.message_id_seq AS s),
  snap = pg_current_snapshot(),
  number = number + 1
WHERE setval('{schema}.turn', 6) = 6
