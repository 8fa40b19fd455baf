-- Delete rows of a barrier that have ended long ago.
-- $1: barrier; $2: how long they are kept, in seconds; $3: rows at most. Returns how many.
-- Index: barrier_changed_at, inside the function. Locking: the rows, with SKIP LOCKED.
SELECT {schema}.sweep_barrier($1, make_interval(secs => $2), $3)
