-- The reference for enqueue.sql: a plain table with an index for its key, and nothing else.
-- $1 key, $2 payload.
INSERT INTO plain (key, payload)
VALUES ($1::text::uuid, $2::bytea)
