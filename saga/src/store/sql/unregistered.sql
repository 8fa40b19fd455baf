-- Find graphs of sagas in flight that this process does not have: of the types that it has, and of
-- the others that its orchestrator has started.
-- $1: the scope of its orchestrator; $2: fingerprints of the graphs that it has, $3: their types,
-- $4: their versions. Returns type, version, how many sagas, and whether they are missing here: a
-- version that is newer than each of its type here is led by the processes that have started it.
-- Index: saga_open. Locking: none.
SELECT s.type, s.version, count(*) AS sagas, coalesce(s.version <= o.newest, false) AS is_missing
FROM {schema}.saga AS s
LEFT JOIN (
  SELECT g.type, max(g.version) AS newest
  FROM unnest($3::text[], $4::integer[]) AS g (type, version)
  GROUP BY g.type
) AS o ON o.type = s.type
WHERE s.finished_at IS NULL AND s.state <> 'quarantined' AND s.fingerprint <> ALL ($2) AND s.scope = $1
GROUP BY s.type, s.version, o.newest
ORDER BY s.type, s.version
