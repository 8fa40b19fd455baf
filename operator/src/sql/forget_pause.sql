-- Delete a pause that another takes the place of, and those that have ended.
-- $1: kind; $2: value. Index: pause_pkey. Locking: the pauses.
DELETE FROM {schema}.pause
WHERE kind = $1 AND value = $2 OR ends_at <= clock_timestamp()
