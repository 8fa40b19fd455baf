-- Note why the next row of a canary could not be retried.
-- $1: its id; $2: the reason. Index: canary_pkey. Locking: the canary.
SELECT {schema}.note_canary_fault($1, $2)
