-- Write down that a relay is at work, and with which settings; forget those that were not seen for
-- long, and count those that were seen just now.
-- $1: its id; $2: retention time in seconds, NULL is for ever; $3:
-- whether dead messages block their ordering key; $4: seconds after which a relay is forgotten; $5:
-- seconds for which one that was seen counts.
-- Returns its id, and how many relays there are.
-- Index: relay_pkey; a row per relay. Locking: its own row; those that are forgotten belong to no
-- running relay, and one that comes back is written again.
WITH forgotten AS (
  DELETE FROM {schema}.relay AS r
  WHERE r.seen_at < clock_timestamp() - make_interval(secs => $4) AND r.id <> $1::text::uuid
)
INSERT INTO {schema}.relay AS r (id, retention_seconds, dead_blocks)
VALUES ($1::text::uuid, $2::float8, $3::boolean)
ON CONFLICT ON CONSTRAINT relay_pkey DO UPDATE
SET seen_at = excluded.seen_at
RETURNING
  r.id::text,
  (
    SELECT count(*)
    FROM {schema}.relay AS other
    WHERE other.seen_at > clock_timestamp() - make_interval(secs => $5) AND other.id <> r.id
  ) + 1
