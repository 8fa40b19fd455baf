-- Whether code of a user has committed by itself the transaction that was opened for it.
-- $1 the transaction, as `open.sql` returned it.
-- Index: none. Locking: none; the transaction is over, or is this moment rolled back.
SELECT pg_xact_status($1::bigint::text::xid8) = 'committed'
