-- Put a saga aside that cannot be read; this transaction has locked it.
-- $1: id; $2: why. Index: saga_pkey. Locking: the row, locked before.
UPDATE {schema}.saga AS s
SET state = 'quarantined', reason = left($2, 250), due_at = NULL, changed_at = clock_timestamp(),
    revision = s.revision + 1
WHERE s.id = $1 AND s.finished_at IS NULL
