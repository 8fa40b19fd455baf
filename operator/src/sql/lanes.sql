-- All lanes. Index: lane_pkey. Locking: none.
SELECT l.lane
FROM {schema}.lane AS l
ORDER BY l.lane
