-- End a pause, or a throttle, and record it.
-- $1: kind; $2: value; $3: operator; $4: note. Index: pause_pkey. Locking: the pause.
SELECT id FROM {schema}.resume_delivery($1, $2, $3, $4) AS t (id)
