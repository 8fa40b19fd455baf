-- Store how the handler ended, when it is more than "completed" without a reply.
-- $1 scope; $2 tenant; $3 key; $4 status; $5 outcome or NULL.
-- Index: inbox_pkey.
-- Locking: the row was inserted by this transaction, no other sees it. Where the handler has
-- committed by itself this is another transaction, and changes nothing.
UPDATE {schema}.inbox
SET status = $4::text,
    outcome = $5::bytea
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
  AND xmin = pg_current_xact_id()::xid
