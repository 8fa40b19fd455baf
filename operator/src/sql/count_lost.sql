-- Count the messages of a lane that would be sent again: 0014_actions.sql has the function.
-- $1: the lane; $2: the stream; $3: not those enqueued before this time, NULL for all.
-- Index: those of the function; it reads the lane's part of the log. Locking: none.
SELECT {schema}.count_lost($1, $2, $3) AS messages
