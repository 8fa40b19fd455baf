-- Note that this relay sleeps: it is next seen when it wakes, at the latest. A row that is seen in
-- the future is that of a sleeping relay.
-- $1: its id; $2: seconds until it wakes. Returns the ids of all relays that are known.
-- Index: relay_pkey. Locking: its own row.
WITH asleep AS (
  UPDATE {schema}.relay AS r
  SET seen_at = clock_timestamp() + make_interval(secs => $2::float8)
  WHERE r.id = $1::text::uuid
)
SELECT r.id::text
FROM {schema}.relay AS r
