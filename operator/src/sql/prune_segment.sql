-- Take a step of retention, such as to empty the oldest segment that is past it, and record it:
-- 0014_actions.sql has the function.
-- $1: seconds; $2: the retention time as it was given; $3: operator; $4: note. Index: those of the
-- function. Locking: the maintenance row, then the segment, or the lanes where it
-- finds messages that were never sent.
SELECT {schema}.prune_segment($1, $3, $4, $2) AS messages
