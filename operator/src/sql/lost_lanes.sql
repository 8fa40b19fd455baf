-- Find the lanes of which a stream lost something that nobody has had sent again.
-- $1: the stream. Index: none, of few rows. Locking: none: asked again under the lane's lock.
SELECT DISTINCT l.lane
FROM {schema}.loss AS l
WHERE l.stream = $1::text AND l.resending_at IS NULL
ORDER BY l.lane
