-- Delete some rows of messages whose key has ended, or that were not delivered for a month.
-- $1 scope.
-- Index: inbox_attempt_touched, then inbox_pkey for each row.
-- Locking: rows that another transaction has locked are left for the next time.
DELETE FROM {schema}.inbox_attempt
WHERE ctid = ANY (ARRAY(
  SELECT a.ctid
  FROM {schema}.inbox_attempt AS a
  WHERE a.scope = $1::text
    AND a.touched_at < clock_timestamp() - interval '1 minute'
    AND (a.touched_at < clock_timestamp() - interval '30 days'
      OR EXISTS (
        SELECT
        FROM {schema}.inbox AS i
        WHERE i.scope = a.scope
          AND i.tenant = a.tenant
          AND i.key = a.key))
  ORDER BY a.touched_at
  LIMIT 1000
  FOR UPDATE OF a SKIP LOCKED
))
