-- The limits of a proof: how long messages and keys are kept, delayed messages of the time, and
-- whether a transaction is open that may have enqueued in it; since when the outbox is one of its
-- own, if it was a copy.
-- $1, $2: enqueued at the first time or later, and before the second. Index: none, a row for each
-- relay; delayed is read whole. Locking: none.
SELECT
  o.identity AS outbox,
  current_database()::text AS database,
  (
    SELECT min(r.retention_seconds)
    FROM {schema}.relay AS r
  ) AS kept_seconds,
  (
    SELECT count(*)
    FROM {schema}.delayed AS d
    WHERE d.created_at >= $1 AND d.created_at < $2
  ) AS delayed,
  EXISTS (
    SELECT
    FROM pg_stat_activity AS a
    WHERE a.datname = current_database() AND a.backend_xid IS NOT NULL AND a.xact_start < $2
  ) AS is_open,
  (
    SELECT max(a.happened_at)
    FROM {schema}.audit AS a
    WHERE a.action = 'adopt' AND a.reason LIKE 'a copy of %'
  ) AS adopted_at
FROM {schema}.outbox AS o
