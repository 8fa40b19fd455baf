-- The lane of an ordering key. $1: the ordering key. Index: none. Locking: none.
SELECT {schema}.lane_of($1)
