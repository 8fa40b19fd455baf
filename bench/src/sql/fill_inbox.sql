-- $1 keys of an inbox, spread like random ones; in their order, which fills the index faster.
-- Locks: those of the INSERT. Index: none is read.
INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, status)
SELECT 'bench:effect', '', m.key, sha256(''), 'completed'
FROM (
  SELECT gen_random_uuid()::text AS key
  FROM generate_series(1, $1::bigint)
  ORDER BY 1
) AS m
