-- End a claim: its row is replaced by one of inbox, and unless the key is given up its effects are
-- forgotten. Those of a key that is given up are kept: an operator may have the message run again.
-- The epochs of its next claim count from 1 again, so this statement gives effects that these
-- owners began an epoch that no owner has: the next one must not take it for its own.
-- $1 scope; $2 tenant; $3 key; $4 owner; $5 epoch; $6 status; $7 outcome or NULL.
-- Index: inbox_claim_pkey, inbox_effect_pkey, inbox_pkey.
-- Locking: the claim's row, until the transaction ends. No row inserted: the lease is lost, and
-- nothing must be committed.
WITH ended AS (
  DELETE FROM {schema}.inbox_claim
  WHERE scope = $1::text
    AND tenant = $2::text
    AND key = $3::text
    AND owner = $4::uuid
    AND epoch = $5::bigint
    AND state = 'running'
  RETURNING scope, tenant, key, fingerprint, message_id
), forgotten AS (
  DELETE FROM {schema}.inbox_effect AS e
  USING ended
  WHERE e.scope = $1::text
    AND e.tenant = $2::text
    AND e.key = $3::text
    AND $6::text <> 'dead'
), kept AS (
  UPDATE {schema}.inbox_effect AS e
  SET epoch = 0
  FROM ended
  WHERE e.scope = $1::text
    AND e.tenant = $2::text
    AND e.key = $3::text
    AND $6::text = 'dead'
)
INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status, outcome)
SELECT scope, tenant, key, fingerprint, message_id, $6::text, $7::bytea
FROM ended
