-- Delete, or count, rows of inboxes that are past their retentions, in a range of blocks.
-- $1: first block; $2: the one after the last; $3: only count.
-- Index: see the function, in schema/migrations/0007_leases.sql. Locking: as there; rows that
--   somebody has locked are left.
SELECT keys, dead_letters, claims, unknown_effects
FROM {schema}.sweep_inbox($1, $2, $3)
