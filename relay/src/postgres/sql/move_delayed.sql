-- Move delayed messages that are due into the log.
-- $1: messages at most; $2: bytes of payload at most, rounded up to a whole message; $3, $4: time
-- and id of the last one that this round has looked at. Returns how many were moved, NULL when
-- another relay moves; how many were looked at; the last of these; and the seconds until the next
-- one is due. While none is due, nothing is locked: the lock would write, and look like news to a
-- relay at rest.
-- Index: delayed_due, delayed_ordering_key, delayed_pkey, message_pkey, inside the function, which
-- runs with its owner's rights: a relay may insert nothing into the log by itself.
-- Locking: the row of delayed_mover and those that are moved, both with SKIP LOCKED: no relay
-- waits.
WITH next AS MATERIALIZED (
  SELECT d.not_before, d.not_before <= statement_timestamp() AS is_due
  FROM {schema}.delayed AS d
  ORDER BY d.not_before
  LIMIT 1
)
SELECT m.moved, m.looked_at, m.last_time, m.last_id, m.next_seconds
FROM next AS n
CROSS JOIN LATERAL {schema}.move_delayed($1::integer, $2::bigint, $3::timestamptz, $4::bigint) AS m
WHERE n.is_due
UNION ALL
SELECT 0, 0, NULL, NULL, (SELECT (extract(epoch FROM n.not_before) - extract(epoch FROM clock_timestamp()))::float8 FROM next AS n)
WHERE NOT EXISTS (SELECT FROM next AS n WHERE n.is_due)
