-- Have relays try parked messages again now, and record it: 0014_actions.sql has the function. $1:
-- a lane; $2: ids; $3: operator; $4: note. Index: those of the function. Locking: the lane, one at
-- a time, so no relay waits for us while we wait for another.
SELECT id FROM {schema}.retry_parked($1, $2, $3, $4) AS t (id)
