-- Lock sagas whose due time has passed, and read them.
-- $1: fingerprints of the graphs that this process has; $2: how many at most; $3: the scope of its
-- orchestrator.
-- Returns rows like lock.sql. Index: saga_due_at. Locking: the rows, until the transaction ends;
-- those that others have are skipped.
SELECT s.id, s.key, s.fingerprint, s.state, s.direction, s.reason, s.data::text AS data, s.revision, s.scope,
       (extract(epoch FROM s.deadline_at) - extract(epoch FROM clock_timestamp()))::float8 AS late_in
FROM {schema}.saga AS s
WHERE s.due_at <= clock_timestamp() AND s.fingerprint = ANY ($1) AND s.scope = $3
ORDER BY s.due_at
LIMIT $2
FOR UPDATE SKIP LOCKED
