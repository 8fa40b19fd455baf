-- Do in no time the work of a relay that has sent everything: settle all committed messages. No
-- stream has acknowledged it: each round has a stream of its own, and the relay would call that a
-- loss.
-- No parameters, no index. Locks: all rows of cursor, receipt and stream.
UPDATE {schema}.cursor SET
  high = (SELECT s.last_value FROM {schema}.message_id_seq AS s),
  snap = pg_current_snapshot(),
  number = number + 1,
  acknowledged = '{}';
DELETE FROM {schema}.receipt;
DELETE FROM {schema}.stream
