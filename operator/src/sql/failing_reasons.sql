-- Count the messages that fail by inbox and reason, the most frequent first. A message and its
-- copies are one, with the reason of the one that failed last.
-- $1: a key; $2: a scope; $3: regular expression of a subject; $4: part of the reason, in lower
-- case; NULL selects all; $5: rows at most.
-- Index: inbox_attempt_pkey, then inbox_pkey for each row. Locking: none.
SELECT
  a.scope,
  a.reason,
  count(*) AS messages,
  min(a.failed_at) AS oldest_at,
  min(a.due_at) AS next_at
FROM (
  SELECT DISTINCT ON (f.scope, f.tenant, f.key) f.*
  FROM {schema}.inbox_attempt AS f
  WHERE f.failed_at IS NOT NULL
    AND ($1::text IS NULL OR f.key = $1)
    AND ($2::text IS NULL OR f.scope = $2)
  ORDER BY f.scope, f.tenant, f.key, f.failed_at DESC
) AS a
WHERE ($3::text IS NULL OR a.subject COLLATE "C" ~ $3)
  AND ($4::text IS NULL OR strpos(lower(a.reason), $4) > 0)
  AND NOT EXISTS (
    SELECT
    FROM {schema}.inbox AS i
    WHERE i.scope = a.scope AND i.tenant = a.tenant AND i.key = a.key
  )
GROUP BY a.scope, a.reason
ORDER BY messages DESC, a.scope, a.reason
LIMIT $5
