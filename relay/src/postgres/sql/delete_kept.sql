-- Delete what was kept of segments that were emptied and is needed no more; returns how many.
-- $1: retention time in seconds.
-- Locking: as drain_segments.sql.
SELECT {schema}.delete_kept($1::float8) AS messages
