-- In a restored database, look into the next segment to be emptied for messages that were never
-- sent, and set them aside; no row when there is nothing to look at.
-- $1: retention time in seconds; $2: rows to look at, at most.
-- Locking: as drain_segments.sql; and the lanes, where it finds something.
SELECT f.number, f.unsent, f.unsent_id, f.is_done
FROM {schema}.find_unsent($1::float8, $2::integer) AS f
