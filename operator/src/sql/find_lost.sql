-- Find messages that a stream lost and that were not sent again, a row for each loss of a lane,
-- with a text of all that decides which messages are sent again.
-- $1: the stream. Index: none, of few rows. Locking: none: asked again under the lane's lock.
SELECT l.lane, concat_ws(' ', l.lane, l.number, l.sequence, l.lost_sequence, l.floor, l.high, l.snap) AS loss
FROM {schema}.loss AS l
WHERE l.stream = $1::text AND l.resending_at IS NULL
ORDER BY l.lane, l.number
