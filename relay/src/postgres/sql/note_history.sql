-- Note the time since the last row of this relay, and if it leads how the database stands; forget
-- rows that are older than eight days.
-- $1: the relay; $2: its version; $3: whether it leads; $4: seconds since its last row; $5:
-- messages stored; $6, $7: seconds until they were, of half of them and of 99 in 100; $8, $9:
-- subjects, and the messages of each. NULL unless it leads: $10: the lag; $11: messages due,
-- parked, dead, delayed, failing in inboxes, and dead letters; $12: messages looked for in inboxes,
-- and found there; $13: seconds until these were handled, as $6 and $7.
-- Index: history_pkey. Locking: old rows, which no other statement locks.
WITH forgotten AS (
  DELETE FROM {schema}.history AS h
  WHERE h.at < clock_timestamp() - interval '8 days'
)
INSERT INTO {schema}.history (
  relay, version, leads, seconds, stored, stored_median, stored_p99, subjects, counts, lag_seconds, backlog, parked, dead,
  delayed, failing, dead_letters, sampled, handled, handled_median, handled_p99
)
VALUES (
  $1::text::uuid, $2::text, $3::boolean, $4::float8, $5::bigint, $6::float8, $7::float8, $8::text[], $9::bigint[],
  $10::float8, ($11::bigint[])[1], ($11::bigint[])[2], ($11::bigint[])[3], ($11::bigint[])[4], ($11::bigint[])[5],
  ($11::bigint[])[6], ($12::bigint[])[1], ($12::bigint[])[2], ($13::float8[])[1], ($13::float8[])[2]
)
