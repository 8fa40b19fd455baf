-- Delete the keys older than their retention in a range of the table's blocks.
-- $1 first block; $2 the one after the last.
-- Index: none, on purpose: one on the time would make every claim slower. A range of blocks is read by their numbers (TID
-- range scan), so a step costs the same for any size of the table; inbox_scope_pkey for each row's retention.
-- Locking: rows that another transaction has locked are left for the next sweep. A claim of a key that is being deleted
-- waits until this transaction ends.
WITH old AS MATERIALIZED (
  SELECT i.ctid
  FROM {schema}.inbox AS i
  WHERE i.ctid >= format('(%s,0)', $1::bigint)::tid
    AND i.ctid < format('(%s,0)', $2::bigint)::tid
    AND i.created_at < statement_timestamp() - (
          SELECT make_interval(secs => s.retention_seconds)
          FROM {schema}.inbox_scope AS s
          WHERE s.scope = i.scope
        )
  FOR UPDATE OF i SKIP LOCKED
)
DELETE FROM {schema}.inbox
WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM old AS o))
