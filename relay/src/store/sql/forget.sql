-- Delete the milestones of a lane before one that retention has finished.
-- $1: the lane; $2: the number of that one. Index: milestone_pkey. Locking: as prune.sql.
DELETE FROM {schema}.milestone AS s
WHERE s.lane = $1 AND s.number < $2
