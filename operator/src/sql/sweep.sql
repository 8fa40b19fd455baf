-- Delete, or count, rows of inboxes that are past their retentions, in a range of blocks, and
-- record it: 0014_actions.sql has the function.
-- $1: first block; $2: the one after the last; $3: only count; $4: operator; $5: note.
-- Index: see sweep_inbox() in schema/migrations/0007_leases.sql. Locking: as there; rows that
-- somebody has locked are left.
SELECT keys, dead_letters, claims, unknown_effects
FROM {schema}.prune_inbox($1, $2, $3, $4, $5)
