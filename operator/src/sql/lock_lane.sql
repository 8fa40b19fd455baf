-- Lock a lane: its parked messages change only under this lock, so this waits for the pass under
-- way and no relay begins another before this transaction ends.
-- $1: the lane. Index: lane_pkey. Locking: one lane at a time, so nobody waits for us while we wait
--   for another.
SELECT l.lane
FROM {schema}.lane AS l
WHERE l.lane = $1
FOR UPDATE
