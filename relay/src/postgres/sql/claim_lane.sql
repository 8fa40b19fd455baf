-- Lock one lane until the transaction ends.
-- $1: the lane. Index: lane_pkey. Locking: waits for a pass, at most the lock_timeout of begin.sql.
-- Passes that go on for several rounds follow each other within a moment; SKIP LOCKED would find
-- the lane free in that moment only.
SELECT FROM {schema}.lane AS l
WHERE l.lane = $1
FOR UPDATE
