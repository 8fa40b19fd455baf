-- Note that an attempt at an action which was let through has ended.
-- $1: barrier; $2: tenant; $3: key of the action; $4: whether it had an effect; $5: which attempt.
-- Returns its state; error OB012 when no such run is under way, which is one of this transaction
-- unless it is leased. Index: barrier_pkey, inside the function.
-- Locking: the action's row until the transaction ends.
SELECT {schema}.end_action($1, $2, $3, $4, $5)
