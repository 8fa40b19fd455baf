-- Ask whether an action may have its effect.
-- $1: barrier; $2: tenant; $3: key of the action; $4: whether its effect is outside this
-- transaction; $5: which attempt at it this is. Returns 'act', 'acted' or 'refused'.
-- Index: barrier_pkey, inside the function.
-- Locking: the action's row until the transaction ends; waits for another that has it.
SELECT {schema}.enter_action($1, $2, $3, $4, $5)
