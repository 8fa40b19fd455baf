-- Note why a step of maintenance failed.
-- $1: the step; $2: the reason. Index: maintenance_fault_pkey. Locking: the row.
INSERT INTO {schema}.maintenance_fault AS f (step, reason)
VALUES ($1, left($2, 1000))
ON CONFLICT ON CONSTRAINT maintenance_fault_pkey DO UPDATE
SET reason = excluded.reason, seen_at = excluded.seen_at
