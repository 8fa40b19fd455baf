-- Enqueue one message in the caller's transaction.
-- Parameters: $1 key, $2 subject, $3 payload, $4 headers as JSON text, $5 ordering key or NULL.
-- Returns the id, or NULL when this very message is enqueued already.
-- Index: message_N_key_unique, inside the function. Locks: waits only for an open transaction with
--   the same key.
-- Headers travel as text: built-in types alone keep the statement usable with a transaction
--   pooler.
SELECT {schema}.enqueue($1, $2, $3, $4::jsonb, $5)
