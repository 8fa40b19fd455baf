-- Note streams that have acknowledged something for the first time, and that no check has covered:
-- a stream of another time that comes later under such a name was restored, or made anew.
-- $1: their names; $2: when they were created; $3: regular expressions of their subjects. In the
-- order of their names, so that two relays never wait for each other.
-- Index: stream_pkey. Locking: its own rows.
INSERT INTO {schema}.stream AS s (name, created, subjects, checked_at)
SELECT n.name, n.created, n.subjects, 'epoch'
FROM unnest($1::text[], $2::timestamptz[], $3::text[]) AS n (name, created, subjects)
ORDER BY n.name COLLATE "C"
ON CONFLICT ON CONSTRAINT stream_pkey DO NOTHING
