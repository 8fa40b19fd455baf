-- Note how a stream is, and that it has all that it acknowledged before a time.
-- $1: its name; $2: when it was created; $3: regular expression of its subjects; $4: the time.
-- Index: stream_pkey. Locking: its own row.
INSERT INTO {schema}.stream AS s (name, created, subjects, checked_at)
VALUES ($1, $2, $3, $4)
ON CONFLICT ON CONSTRAINT stream_pkey DO UPDATE
SET
  created = excluded.created,
  subjects = excluded.subjects,
  checked_at = excluded.checked_at
