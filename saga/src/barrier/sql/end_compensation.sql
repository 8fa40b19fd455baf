-- Note that a leased compensation has undone its action.
-- $1: barrier; $2: tenant; $3: key of the action.
-- Returns its state, NULL when none was under way. Index: barrier_pkey, inside the function.
-- Locking: the action's row until the transaction ends.
SELECT {schema}.end_compensation($1, $2, $3)
