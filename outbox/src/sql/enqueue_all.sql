-- Enqueue many messages in the caller's transaction, in the order given. Parameters, arrays of one
-- length: $1 keys, $2 subjects, $3 payloads, $4 headers as JSON text, $5 ordering keys with NULLs.
-- Returns one id for each message, in that order; NULL where this very message is enqueued already.
-- Index: message_N_key_unique, inside the function. Locks: waits for open transactions with one of
-- the keys; two calls with the same keys in different order may deadlock, which PostgreSQL resolves
-- by ending one.
SELECT e.id
FROM {schema}.enqueue_all($1, $2, $3, $4::jsonb[], $5) WITH ORDINALITY AS e (key, id, n)
ORDER BY e.n
