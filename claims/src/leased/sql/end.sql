-- End a claim: its row is replaced by one of inbox; whether the lease was still held.
-- $1 scope; $2 tenant; $3 key; $4 owner; $5 epoch; $6 status; $7 outcome or NULL.
-- Index: inbox_claim_pkey, inbox_effect_pkey, inbox_pkey.
-- Locking: the claim's row, until the transaction ends. False: the lease is lost, and nothing must
-- be committed.
SELECT {schema}.end_leased($1::text, $2::text, $3::text, $4::uuid, $5::bigint, $6::text, $7::bytea)
