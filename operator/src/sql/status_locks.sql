-- Which sessions have lanes locked now. A locked row carries the transaction that locked it as its
-- xmax, and as long as that runs it holds the lock on its own id. A session that locked the whole
-- table has every lane. One for which a session with lanes waits, at another table, has these too.
-- $1: sessions at most.
-- Index: none: a row per lane, never updated; pg_locks and pg_stat_activity have a row per lock and
--   session.
-- Locking: none.
WITH lock AS MATERIALIZED (
  SELECT k.locktype, k.database, k.relation, k.transactionid, k.virtualtransaction, k.pid, k.mode
  FROM pg_locks AS k
  WHERE k.granted AND k.locktype IN ('relation', 'transactionid')
),
held AS (
  SELECT k.virtualtransaction, k.pid, l.lane
  FROM {schema}.lane AS l
  JOIN lock AS k ON k.locktype = 'transactionid' AND k.transactionid = l.xmax
  UNION
  SELECT k.virtualtransaction, k.pid, l.lane
  FROM lock AS k
  JOIN pg_database AS d ON d.oid = k.database AND d.datname = current_database()
  CROSS JOIN {schema}.lane AS l
  WHERE k.locktype = 'relation' AND k.relation = '{schema}.lane'::regclass AND k.mode = 'ExclusiveLock'
),
blocking AS (
  SELECT (SELECT min(k.virtualtransaction) FROM lock AS k WHERE k.pid = b.pid) AS virtualtransaction, b.pid, h.lane
  FROM held AS h
  CROSS JOIN LATERAL unnest(pg_blocking_pids(h.pid)) AS b (pid)
  WHERE b.pid <> 0
),
holder AS (
  SELECT h.virtualtransaction, h.pid, array_agg(DISTINCT h.lane ORDER BY h.lane) AS lanes
  FROM (SELECT o.virtualtransaction, o.pid, o.lane FROM held AS o UNION ALL SELECT b.virtualtransaction, b.pid, b.lane FROM blocking AS b) AS h
  GROUP BY h.virtualtransaction, h.pid
)
SELECT
  h.lanes,
  h.pid,
  x.gid AS prepared,
  coalesce(a.usename::text, x.owner::text) AS user_name,
  a.application_name,
  host(a.client_addr) AS client,
  a.state,
  extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::float8 AS transaction_seconds
FROM holder AS h
LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid
LEFT JOIN lock AS k ON h.pid IS NULL AND k.locktype = 'transactionid' AND k.virtualtransaction = h.virtualtransaction
LEFT JOIN pg_prepared_xacts AS x ON x.transaction = k.transactionid
ORDER BY h.lanes
LIMIT $1
