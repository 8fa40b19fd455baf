-- Note that a leased compensation has undone its action, or that one of either kind has not.
-- $1: barrier; $2: tenant; $3: key of the action; $4: whether it is undone.
-- Returns its state, NULL when none was let through. Index: barrier_pkey, inside the function.
-- Locking: the action's row until the transaction ends.
SELECT {schema}.end_compensation($1, $2, $3, $4)
