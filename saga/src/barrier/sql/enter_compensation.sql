-- Ask whether a compensation has something to undo; where it has not, the action will never act.
-- $1: barrier; $2: tenant; $3: key of the action; $4: whether it undoes outside this transaction;
-- $5: which attempt at that this is; $6: the scope of its inbox where it does, else NULL.
-- Returns 'undo', 'nothing' or 'wait'. Index: barrier_pkey, inbox_pkey, inbox_claim_pkey and
-- inbox_effect_pkey, inside the function. Locking: the action's row, and the end of another
-- attempt, until the transaction ends; waits for another that has them.
SELECT {schema}.enter_compensation($1, $2, $3, $4, $5, $6)
