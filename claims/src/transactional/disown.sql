-- Take back a claim that the handler has committed by itself, so that its message can be given up.
-- $1 scope; $2 tenant; $3 key; $4 id of the transaction, as `claim.sql` returned it.
-- Index: inbox_pkey. Locking: the row, until this transaction has recorded the dead letter.
DELETE FROM {schema}.inbox
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
  AND xmin = $4::bigint::text::xid8::xid
