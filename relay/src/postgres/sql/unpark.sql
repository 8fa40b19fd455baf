-- Forget parked messages that the stream has stored.
-- $1: lanes; $2: ids. Index: parked_pkey. Locking: the lanes are locked by claim.sql.
DELETE FROM {schema}.parked AS p
USING unnest($1::smallint[], $2::bigint[]) AS s (lane, id)
WHERE p.lane = s.lane AND p.id = s.id
