-- Lock a saga, and read it.
-- $1: its key. Returns one row, or none. Index: saga_key_unique. Locking: the row, until the
-- transaction ends; every transaction that changes a saga locks it. After a wait the row is read as
-- it is then; read other tables by a later statement.
SELECT s.id, s.key, s.fingerprint, s.state, s.direction, s.reason, s.data::text AS data, s.revision, s.scope,
       (extract(epoch FROM s.deadline_at) - extract(epoch FROM clock_timestamp()))::float8 AS late_in
FROM {schema}.saga AS s
WHERE s.key = $1::text
FOR UPDATE
