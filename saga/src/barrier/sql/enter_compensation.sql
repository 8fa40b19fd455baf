-- Ask whether a compensation has something to undo; where it has not, the action will never act.
-- $1: barrier; $2: tenant; $3: key of the action; $4: whether it undoes outside this transaction.
-- Returns 'undo', 'nothing' or 'wait'. Index: barrier_pkey, inside the function.
-- Locking: the action's row until the transaction ends; waits for another that has it.
SELECT {schema}.enter_compensation($1, $2, $3, $4)
