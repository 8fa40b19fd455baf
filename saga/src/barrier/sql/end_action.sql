-- Note that an action which was let through has ended.
-- $1: barrier; $2: tenant; $3: key of the action; $4: whether it had an effect.
-- Returns its state, NULL when none was under way. Index: barrier_pkey, inside the function.
-- Locking: the action's row until the transaction ends.
SELECT {schema}.end_action($1, $2, $3, $4)
