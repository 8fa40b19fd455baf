-- A step of maintenance works again.
-- $1: the step, NULL for all. Index: none, of few rows. Locking: the rows.
DELETE FROM {schema}.maintenance_fault AS f
WHERE $1::text IS NULL OR f.step = $1::text
