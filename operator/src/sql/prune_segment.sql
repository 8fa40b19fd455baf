-- Empty the oldest segment that is past retention, and record it: 0014_actions.sql has the
-- function.
-- $1: seconds; $2: operator; $3: note; $4: the retention time as it was given. Index: those of the
-- function. Locking: the maintenance row, then the segment.
SELECT {schema}.prune_segment($1, $2, $3, $4) AS messages
