-- Delete the notes about messages whose segments are emptied; whether there are more.
-- $1: how many of each kind at most. Locking: as drain_segments.sql.
SELECT {schema}.forget_emptied($1::integer)
