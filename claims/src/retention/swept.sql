-- Record the position of the sweep. $1 the block at which it continues; 0 when it has reached the
-- end. Index: inbox_sweep_pkey. Locking: the row is locked by `claim_sweep.sql`.
UPDATE {schema}.inbox_sweep
SET next_block = $1::bigint,
    finished_at = CASE WHEN $1::bigint = 0 THEN clock_timestamp() ELSE finished_at END
