-- How many messages were enqueued since. $1: the last id before.
-- Index: the primary keys of the segments. Locking: none.
SELECT count(*)
FROM {schema}.lane AS l
JOIN {schema}.message AS m ON m.lane = l.lane AND m.id > $1::bigint
