-- The owner of the table could do this without the API: the reference for enqueue.sql.
-- $1 lane, $2 key, $3 subject, $4 payload. The same columns, constraints and indexes as through the
--   API.
INSERT INTO {schema}.message (lane, key, subject, headers, payload)
VALUES ($1::smallint, $2::text, $3::text, '{}', $4::bytea)
