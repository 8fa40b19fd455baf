-- Claim a key that is probably new: `claim.sql` without ON CONFLICT, which costs a tenth of the
-- whole message. A key that was handled before violates inbox_pkey: the transaction is aborted, and
-- the claim is repeated with `claim.sql`. Purpose, parameters, index and locking are those of
-- `claim.sql`; a test holds that the two say the same.
INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status, outcome)
SELECT $2::text, $3::text, $4::text, $5::bytea, $6::bigint, $7::text, $8::bytea
WHERE current_setting('transaction_deferrable') <> current_setting('default_transaction_deferrable')
  AND pg_try_advisory_xact_lock($1::bigint)
  AND set_config('transaction_timeout', '{transaction_timeout}ms', true) IS NOT NULL
  AND set_config('idle_in_transaction_session_timeout', '{idle_timeout}ms', true) IS NOT NULL
  AND set_config('statement_timeout', '{statement_timeout}ms', true) IS NOT NULL
  AND set_config('lock_timeout', '{lock_timeout}ms', true) IS NOT NULL
RETURNING pg_current_xact_id()::text
