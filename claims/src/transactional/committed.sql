-- Whether this transaction has committed its claim, although its handler failed: the handler sent
-- COMMIT by itself. A copy of the message would be answered as handled.
-- $1 scope; $2 tenant; $3 key; $4 id of the transaction, as `claim.sql` returned it.
-- Index: inbox_pkey. Locking: none; the transaction has ended.
SELECT (EXISTS (
  SELECT
  FROM {schema}.inbox
  WHERE scope = $1::text
    AND tenant = $2::text
    AND key = $3::text
    AND xmin = $4::bigint::text::xid8::xid
))::text
