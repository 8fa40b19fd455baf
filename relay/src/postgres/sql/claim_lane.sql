-- Lock one lane until the transaction ends, unless a pass has it.
-- $1: the lane. Index: lane_pkey. Locking: SKIP LOCKED: a pass is worth more than this.
SELECT FROM {schema}.lane AS l
WHERE l.lane = $1
FOR UPDATE SKIP LOCKED
