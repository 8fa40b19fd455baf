-- Delete what was kept of segments that were emptied and is needed no more; returns how many, a
-- thousand at most.
-- $1: retention time in seconds. Locking: the maintenance row is locked by lock_maintenance.sql.
SELECT {schema}.delete_kept($1::float8) AS messages
