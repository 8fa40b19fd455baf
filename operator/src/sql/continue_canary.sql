-- Go on with the rest of a canary that has stopped, and record it. False when there is none.
-- $1: its id; $2: operator; $3: note. Index: canary_pkey, canary_row_next. Locking: the canary.
SELECT {schema}.continue_canary($1, $2, $3)
