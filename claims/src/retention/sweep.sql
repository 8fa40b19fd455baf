-- Delete rows that are older than their retention in the next range of blocks that may hold some:
-- keys, dead letters, claims that were not taken up again, and the effects of these claims. No row
-- when no sweep is due, or another process sweeps. No parameters.
-- Index: inbox_sweep_pkey, inbox_sweep_range_pkey. There is deliberately none on a time, since it
-- would make every claim slower. See the function, in `schema/migrations/0007_leases.sql`.
-- Locking: the row of inbox_sweep until the end of the transaction. Rows that another transaction
-- has locked are left for the next sweep. A claim of a key that is being deleted waits until this
-- transaction ends.
SELECT keys::text, dead_letters::text, claims::text, unknown_effects::text, is_last
FROM {schema}.sweep_inboxes()
