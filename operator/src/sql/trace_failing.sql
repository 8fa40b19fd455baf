-- Which keys fail in the inboxes of this database, and how: those that were asked for, and
-- those below one of them.
-- $1: the keys; $2: the key below which all are looked for; $3: inboxes (of each scope and tenant
-- one) to look at, at most; $4: rows at most. Keys below `key` lie between `key:` and `key;`.
-- Index: inbox_attempt_pkey, from one scope and tenant to the next, then each key in each;
-- inbox_pkey for each row. Locking: none.
WITH RECURSIVE looked_at AS (
  (
    SELECT a.scope, a.tenant, 1 AS place
    FROM {schema}.inbox_attempt AS a
    ORDER BY a.scope, a.tenant
    LIMIT 1
  )
  UNION ALL
  SELECT next.scope, next.tenant, h.place + 1
  FROM looked_at AS h
  CROSS JOIN LATERAL (
    SELECT a.scope, a.tenant
    FROM {schema}.inbox_attempt AS a
    WHERE (a.scope, a.tenant) > (h.scope, h.tenant)
    ORDER BY a.scope, a.tenant
    LIMIT 1
  ) AS next
  WHERE h.place < $3
),
found AS (
  SELECT f.*
  FROM looked_at AS h
  CROSS JOIN unnest($1::text[]) AS k (key)
  CROSS JOIN LATERAL (
    SELECT a.*
    FROM {schema}.inbox_attempt AS a
    WHERE a.scope = h.scope AND a.tenant = h.tenant AND a.key = k.key
    OFFSET 0
  ) AS f
  UNION
  SELECT f.*
  FROM looked_at AS h
  CROSS JOIN LATERAL (
    SELECT a.*
    FROM {schema}.inbox_attempt AS a
    WHERE a.scope = h.scope AND a.tenant = h.tenant AND a.key > $2::text || ':' AND a.key < $2::text || ';'
    ORDER BY a.key
    LIMIT $4
  ) AS f
)
-- A message and its copies are one, as in failing.sql.
SELECT DISTINCT ON (f.key, f.scope, f.tenant)
  f.key,
  f.scope,
  f.tenant,
  least(
    sum(f.failures + greatest(f.begun::numeric - 2, 0)) OVER (PARTITION BY f.key, f.scope, f.tenant),
    9223372036854775807
  )::bigint AS failures,
  f.reason,
  f.failed_at,
  f.due_at
FROM found AS f
WHERE f.failed_at IS NOT NULL
  AND NOT EXISTS (
    SELECT
    FROM {schema}.inbox AS i
    WHERE i.scope = f.scope AND i.tenant = f.tenant AND i.key = f.key
  )
ORDER BY f.key, f.scope, f.tenant, f.failed_at DESC
LIMIT $4
