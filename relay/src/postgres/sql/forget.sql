-- Delete the milestones of lanes before those that retention has finished.
-- $1: lanes; $2: the number of each one's. Index: milestone_pkey. Locking: as prune.sql.
DELETE FROM {schema}.milestone AS s
USING unnest($1::smallint[], $2::bigint[]) AS w (lane, number)
WHERE s.lane = w.lane AND s.number < w.number
