-- Delete rows that are older than their retention in a range of blocks: keys, dead letters, claims
-- that were not taken up again, and the effects of these claims.
-- $1 first block; $2 the one after the last. Index: there is deliberately none on a time, since it
-- would make every claim slower. See the function, in `schema/migrations/0007_leases.sql`;
-- inbox_scope_pkey for each row's retention. Locking: rows that another transaction has locked are
-- left for the next sweep. A claim of a key that is being deleted waits until this transaction
-- ends.
SELECT keys::text, dead_letters::text, claims::text, unknown_effects::text
FROM {schema}.sweep_inbox($1::bigint, $2::bigint, false)
