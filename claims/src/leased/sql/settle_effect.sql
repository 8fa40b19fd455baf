-- Remember how an effect ended; it may be written again when the answer was lost. Continues
-- `held.sql`.
-- $1 to $6: see `held.sql`; $7 step; $8 state; $9 result.
-- Index: inbox_effect_pkey.
-- Locking: the effect's row. No row: the lease is lost.
INSERT INTO {schema}.inbox_effect AS e (scope, tenant, key, step, state, result, epoch)
SELECT $1::text, $2::text, $3::text, $7::text, $8::text, $9::bytea, held.epoch
FROM held
ON CONFLICT ON CONSTRAINT inbox_effect_pkey DO UPDATE
SET state = excluded.state,
    result = excluded.result,
    epoch = excluded.epoch
