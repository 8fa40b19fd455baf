-- Find graphs of sagas in flight that this process does not have.
-- $1: fingerprints of those that it has. Returns type, version and how many sagas.
-- Index: saga_open. Locking: none.
SELECT s.type, s.version, count(*) AS sagas
FROM {schema}.saga AS s
WHERE s.finished_at IS NULL AND s.state <> 'quarantined' AND s.fingerprint <> ALL ($1)
GROUP BY s.type, s.version
ORDER BY s.type, s.version
