-- One step of maintenance, as a relay takes it (postgres/session.rs, query_and_commit). {step}: one
-- of the functions of 0013_segments.sql.
-- No parameters. Index: maintenance_pkey. Locking: the maintenance row, and those of the function.
BEGIN;
SET LOCAL synchronous_commit = off;
SELECT FROM {schema}.maintenance FOR UPDATE;
SELECT * FROM {schema}.{step};
COMMIT
