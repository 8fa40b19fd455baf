-- Look at messages that fail in an inbox, in the order of scope, tenant and key, and say which of
-- them are selected. A message and its copies are one: of its rows the one that failed last, with
-- the failures of all: those that are recorded, and runs that left no trace, but for the first of
-- them and for one that may be at work. A message whose key has ended does not fail any more. It is
-- due if one of its copies is, and none has failed since.
-- $1: after this scope; $2: tenant; $3: key; $4: messages to look at, at most; $5: a key; $6: a
-- scope; $7: regular expression of a subject; $8: part of the reason, in lower case; $9: tenant of
-- the one message that is meant, with $5 and $6; $10: the first line of the reason; $11: a subject,
-- empty for none; NULL selects all. Index: inbox_attempt_pkey, also for the key of each row,
-- inbox_pkey and audit_key. Locking: none: retry_failing.sql and bury_failing.sql look again.
SELECT
  a.scope,
  a.tenant,
  a.key,
  a.message,
  copies.failures,
  a.reason,
  a.failed_at,
  a.due_at,
  EXISTS (
    SELECT
    FROM {schema}.inbox_attempt AS o
    WHERE o.scope = a.scope AND o.tenant = a.tenant AND o.key = a.key
      AND o.due_at <= clock_timestamp()
      AND o.due_at >= a.failed_at
  ) AS is_due,
  a.stream,
  a.stream_sequence,
  a.subject,
  greatest(copies.first_at, (
    SELECT max(u.happened_at)
    FROM {schema}.audit AS u
    WHERE u.key = a.key AND u.scope = a.scope AND u.action = 'retry'
  )) AS came_at,
  (a.failed_at IS NOT NULL
    AND ($5::text IS NULL OR a.key = $5)
    AND ($7::text IS NULL OR a.subject COLLATE "C" ~ $7)
    AND ($8::text IS NULL OR strpos(lower(a.reason), $8) > 0)
    AND ($10::text IS NULL OR split_part(translate(a.reason, E'\r', E'\n'), E'\n', 1) = $10)
    AND ($11::text IS NULL OR coalesce(a.subject, '') = $11)
    AND NOT EXISTS (
      SELECT
      FROM {schema}.inbox AS i
      WHERE i.scope = a.scope AND i.tenant = a.tenant AND i.key = a.key
    )) IS TRUE AS selected
FROM (
  SELECT DISTINCT ON (f.scope, f.tenant, f.key) f.*
  FROM {schema}.inbox_attempt AS f
  WHERE (f.scope, f.tenant, f.key) > ($1, $2, $3)
    AND ($6::text IS NULL OR f.scope = $6)
    AND ($9::text IS NULL OR f.tenant = $9 AND f.key = $5)
  ORDER BY f.scope, f.tenant, f.key, f.failed_at DESC NULLS LAST, f.message
  LIMIT $4
) AS a
CROSS JOIN LATERAL (
  SELECT
    least(sum(o.failures + greatest(o.begun::numeric - 2, 0)), 9223372036854775807)::bigint AS failures,
    min(o.first_at) AS first_at
  FROM {schema}.inbox_attempt AS o
  WHERE o.scope = a.scope AND o.tenant = a.tenant AND o.key = a.key
) AS copies
ORDER BY a.scope, a.tenant, a.key
