-- Note that a leased compensation has undone its action, or that one of either kind has not.
-- $1: barrier; $2: tenant; $3: key of the action; $4: whether it is undone; $5: which attempt.
-- Returns its state; error OB012 when no such run is under way, which is one of this transaction
-- unless it is leased. Index: barrier_pkey, inside the function.
-- Locking: the action's row until the transaction ends.
SELECT {schema}.end_compensation($1, $2, $3, $4, $5)
