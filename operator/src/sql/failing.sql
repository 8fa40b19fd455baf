-- Look at messages that fail in an inbox, in the order of scope, tenant, key and copy, and say
-- which of them are selected. A message whose key has ended does not fail any more. It is due if
-- one with its key is, and none has failed since. $1: after this scope; $2: tenant; $3: key; $4:
-- copy; $5: rows to look at, at most; $6: a key; $7: a scope; $8: regular expression of a subject;
-- $9: part of the reason, in lower case; $10, $11: tenant and copy of the one row that is meant,
-- with $6 and $7; $12: the first line of the reason; $13: a subject, empty for none; NULL selects
-- all. Index: inbox_attempt_pkey, also for the key of each row, and inbox_pkey. Locking: none:
-- retry_failing.sql and bury_failing.sql look again.
SELECT
  a.scope,
  a.tenant,
  a.key,
  a.message,
  a.failures,
  a.begun,
  a.reason,
  a.failed_at,
  a.due_at,
  EXISTS (
    SELECT
    FROM {schema}.inbox_attempt AS o
    WHERE o.scope = a.scope AND o.tenant = a.tenant AND o.key = a.key
      AND o.due_at <= clock_timestamp()
      AND NOT EXISTS (
        SELECT
        FROM {schema}.inbox_attempt AS p
        WHERE p.scope = a.scope AND p.tenant = a.tenant AND p.key = a.key AND p.failed_at > o.due_at
      )
  ) AS is_due,
  a.stream,
  a.stream_sequence,
  a.subject,
  a.first_at,
  (a.failed_at IS NOT NULL
    AND ($6::text IS NULL OR a.key = $6)
    AND ($8::text IS NULL OR a.subject COLLATE "C" ~ $8)
    AND ($9::text IS NULL OR strpos(lower(a.reason), $9) > 0)
    AND ($12::text IS NULL OR split_part(translate(a.reason, E'\r', E'\n'), E'\n', 1) = $12)
    AND ($13::text IS NULL OR coalesce(a.subject, '') = $13)
    AND NOT EXISTS (
      SELECT
      FROM {schema}.inbox AS i
      WHERE i.scope = a.scope AND i.tenant = a.tenant AND i.key = a.key
    )) IS TRUE AS selected
FROM {schema}.inbox_attempt AS a
WHERE (a.scope, a.tenant, a.key, a.message) > ($1, $2, $3, $4)
  AND ($7::text IS NULL OR a.scope = $7)
  AND ($10::text IS NULL OR a.tenant = $10 AND a.key = $6 AND a.message = $11)
ORDER BY a.scope, a.tenant, a.key, a.message
LIMIT $5
