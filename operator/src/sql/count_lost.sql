-- Count the messages of a lane that would be sent again, and find the milestone from which on:
-- 0014_actions.sql has the function.
-- $1: the lane; $2: the stream; $3: from the milestone before this time on, NULL for all.
-- Index: those of the function; it reads the lane's part of the log. Locking: none.
SELECT messages, milestone FROM {schema}.count_lost($1, $2, $3)
