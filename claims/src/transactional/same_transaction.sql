-- Fail, and so abort the transaction, unless it is the one that has claimed the key. A handler that
-- sends ROLLBACK and BEGIN by itself loses the claim, and its later writes would be committed
-- without a key. The statement also fails in a transaction that an error aborted, which COMMIT
-- would answer with a silent ROLLBACK, and outside of a transaction.
-- $1 id of the transaction that has claimed the key, as `claim.sql` returned it.
-- Index: none. Locking: none.
SELECT 1 / (CASE WHEN pg_current_xact_id_if_assigned()::text::bigint = $1::bigint THEN 1 ELSE 0 END)
