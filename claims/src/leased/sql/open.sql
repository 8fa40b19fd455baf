-- Open a transaction of an owner: whether the lease is still its own, and limits for a process that
-- hangs meanwhile.
-- $1 scope; $2 tenant; $3 key; $4 owner; $5 epoch; $6 limit in milliseconds.
-- Index: inbox_claim_pkey.
-- Returns the transaction's id, by which `committed.sql` knows a COMMIT of the user's code.
-- Locking: none, so that the lease can be renewed during the transaction; `renew.sql` or `end.sql`
-- locks before the commit. No row: the lease is lost.
SELECT pg_current_xact_id()::text,
       set_config('idle_in_transaction_session_timeout', $6::bigint || 'ms', true),
       set_config('statement_timeout', $6::bigint || 'ms', true)
FROM {schema}.inbox_claim
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
  AND owner = $4::uuid
  AND epoch = $5::bigint
  AND state = 'running'
