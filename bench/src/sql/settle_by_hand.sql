-- What a relay has sent by now, in no time: all that is committed is settled.
-- No parameters, no index. Locks: all rows of cursor.
UPDATE {schema}.cursor SET
  high = (SELECT s.last_value FROM {schema}.message_id_seq AS s),
  snap = pg_current_snapshot(),
  number = number + 1
