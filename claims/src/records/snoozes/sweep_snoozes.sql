-- Delete some rows of messages that are snoozed no more: their key has ended, or nothing was heard
-- of them for a month.
-- $1 scope.
-- Index: inbox_snooze_due, then inbox_pkey for each row.
-- Locking: rows that another transaction has locked are left for the next time.
DELETE FROM {schema}.inbox_snooze
WHERE ctid = ANY (ARRAY(
  SELECT p.ctid
  FROM {schema}.inbox_snooze AS p
  WHERE p.scope = $1::text
    AND p.due_at < clock_timestamp() - interval '1 minute'
    AND (p.due_at < clock_timestamp() - interval '30 days'
      OR EXISTS (
        SELECT
        FROM {schema}.inbox AS i
        WHERE i.scope = p.scope
          AND i.tenant = p.tenant
          AND i.key = p.key))
  ORDER BY p.due_at
  LIMIT 1000
  FOR UPDATE OF p SKIP LOCKED
))
