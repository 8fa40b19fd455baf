-- Take the locks of entities, in the order of their hashes, not in the order of the call.
-- $1 hashes; $2 how long to wait for each, as lock_timeout takes it ("1500ms"), or NULL to keep the
-- present limit. No index.
-- Locking: advisory locks of the transaction, exclusive; they end with it, however it ends. Two
-- transactions that take theirs in one order cannot wait for each other in a circle. The order is
-- the subquery's, which the planner cannot pull up: its sort has read every hash, and lock_timeout
-- is set, before the function above it is called for the first time. Returns how many there are.
SELECT count(pg_advisory_xact_lock(ordered.hash))::text
FROM (
  SELECT DISTINCT named.hash
  FROM unnest($1::bigint[]) AS named (hash)
  WHERE $2::text IS NULL
     OR set_config('lock_timeout', $2::text, true) IS NOT NULL
  ORDER BY named.hash
) AS ordered
