-- Note how streams are, and that each has all that it acknowledged before a time.
-- $1: their names; $2: when they were created; $3: regular expressions of their subjects; $4: the
-- times. In the order of their names, so that two relays never wait for each other.
-- Index: stream_pkey. Locking: its own rows.
INSERT INTO {schema}.stream AS s (name, created, subjects, checked_at)
SELECT n.name, n.created, n.subjects, n.checked_at
FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::timestamptz[]) AS n (name, created, subjects, checked_at)
ORDER BY n.name COLLATE "C"
ON CONFLICT ON CONSTRAINT stream_pkey DO UPDATE
SET
  created = excluded.created,
  subjects = excluded.subjects,
  checked_at = excluded.checked_at
