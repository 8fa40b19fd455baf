-- Transactions that have enqueued messages and are still open, as far as this role sees when they
-- began; the oldest first. They hold the lock of an INSERT on a segment of the log.
-- $1: transactions at most; $2: the name of relays, whose retention holds the same lock.
-- Index: none: pg_locks and pg_stat_activity have a row per lock and session. Locking: none.
WITH lock AS MATERIALIZED (
  SELECT k.locktype, k.database, k.relation, k.transactionid, k.virtualtransaction, k.pid, k.mode
  FROM pg_locks AS k
  WHERE k.granted AND k.locktype IN ('relation', 'transactionid')
)
SELECT *
FROM (
  SELECT
    '{}'::smallint[] AS lanes,
    k.pid,
    x.gid AS prepared,
    coalesce(a.usename::text, x.owner::text) AS user_name,
    a.application_name,
    host(a.client_addr) AS client,
    a.state,
    extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::float8 AS transaction_seconds
  FROM lock AS k
  JOIN pg_database AS d ON d.oid = k.database AND d.datname = current_database()
  LEFT JOIN pg_stat_activity AS a ON a.pid = k.pid
  LEFT JOIN lock AS own
    ON k.pid IS NULL AND own.locktype = 'transactionid' AND own.virtualtransaction = k.virtualtransaction
  LEFT JOIN pg_prepared_xacts AS x ON x.transaction = own.transactionid
  WHERE k.locktype = 'relation'
    AND k.relation = ANY (ARRAY['{schema}.message_0', '{schema}.message_1', '{schema}.message_2', '{schema}.message_3', '{schema}.message_4', '{schema}.message_5', '{schema}.message_6', '{schema}.message_7']::regclass[])
    AND k.mode = 'RowExclusiveLock'
    AND a.application_name IS DISTINCT FROM $2
) AS open
WHERE open.transaction_seconds IS NOT NULL
ORDER BY open.transaction_seconds DESC
LIMIT $1
