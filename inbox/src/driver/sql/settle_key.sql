-- Store how a key ended that this transaction has claimed. It fails where the handler has ended the
-- transaction, or went on in an aborted one, whose COMMIT would report no error.
-- $1 scope; $2 key; $3 outcome as JSON, or NULL; $4 tenant; $5 status.
-- Index: inbox_pkey, inside the function.
-- Locking: the key's row, which this transaction has written.
SELECT {schema}.settle($1::text, $2::text, $3::text::json, $4::text, $5::text)::text
