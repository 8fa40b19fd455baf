-- Look whether a transaction has ended since an earlier look: then another snapshot comes. A row
-- that was not visible in the earlier one was written by a transaction that is in its list, and has
-- left it when it ends; or by a later one, which moves xmax when it ends. A prepared transaction is
-- open until it is committed or rolled back. One that was rolled back, or enqueued nothing, has
-- ended as well: then the claim that follows finds nothing. No parameters: PostgreSQL spends more
-- on planning and on a comparison than on this.
-- Index: none. Locking: none.
SELECT pg_current_snapshot()
