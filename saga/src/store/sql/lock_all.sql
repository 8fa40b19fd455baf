-- Lock sagas, and read them, as lock.sql does with one. $1: their keys. Returns a row for each that
-- is there. Index: saga_key_unique. Locking: the rows, in the order of their ids, so that two who
-- lock some of the same wait for each other in one order.
SELECT s.id, s.key, s.fingerprint, s.state, s.direction, s.reason, s.data::text AS data, s.revision, s.scope,
       (extract(epoch FROM s.deadline_at) - extract(epoch FROM clock_timestamp()))::float8 AS late_in
FROM {schema}.saga AS s
WHERE s.key = ANY ($1::text[])
ORDER BY s.id
FOR UPDATE
