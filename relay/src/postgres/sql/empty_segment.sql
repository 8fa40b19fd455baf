-- Empty the oldest segment of the log that is past the retention time; no row when there is none.
-- $1: retention time in seconds.
-- Locking: as drain_segments.sql; and that table, for which it waits 300 ms at most.
SELECT e.number, e.messages
FROM {schema}.empty_segment($1::float8) AS e
