-- Move delayed messages that are due into the log.
-- $1: messages at most; $2: bytes of payload at most, rounded up to a whole message; $3, $4: time
-- and id of the last one that this round has looked at. Returns how many were moved, NULL when
-- another relay moves; how many were looked at; the last of these; and the seconds until the next
-- one is due.
-- Index: delayed_due, delayed_ordering_key, delayed_pkey, message_pkey, inside the function, which
-- runs with its owner's rights: a relay may insert nothing into the log by itself.
-- Locking: the row of delayed_mover and those that are moved, both with SKIP LOCKED: nobody waits.
SELECT m.moved, m.looked_at, m.last_time, m.last_id, m.next_seconds
FROM {schema}.move_delayed($1::integer, $2::bigint, $3::timestamptz, $4::bigint) AS m
