-- Which keys wait for a dead letter of their ordering key, or were retried and have not ended:
-- those that were asked for, and those below one of them.
-- $1: the keys; $2: the key below which all are looked for; $3: rows at most.
-- Index: inbox_behind_key; dead_letter_line and inbox_behind_line for each row. Locking: none.
SELECT
  f.key,
  f.scope,
  f.tenant,
  f.ordering_key,
  f.is_due,
  f.created_at,
  h.id AS head_id,
  h.key AS head_key,
  h.reason,
  (
    SELECT count(*)
    FROM (
      SELECT
      FROM {schema}.inbox_behind AS b
      WHERE b.scope = f.scope AND b.ordering_key = f.ordering_key AND b.id < f.id
      LIMIT 1000
    ) AS b
  ) AS ahead
FROM (
  (SELECT b.* FROM {schema}.inbox_behind AS b WHERE b.key = ANY ($1::text[]) ORDER BY b.key LIMIT $3)
  UNION ALL
  (
    SELECT b.*
    FROM {schema}.inbox_behind AS b
    WHERE b.key COLLATE "C" > $2::text || ':' AND b.key COLLATE "C" < $2::text || ';' AND b.key <> ALL ($1::text[])
    ORDER BY b.key
    LIMIT $3
  )
) AS f
LEFT JOIN LATERAL (
  SELECT d.id, d.key, d.reason
  FROM {schema}.dead_letter AS d
  WHERE d.scope = f.scope AND d.ordering_key = f.ordering_key AND d.id < f.id
  ORDER BY d.id
  LIMIT 1
) AS h ON true
ORDER BY f.key, f.scope, f.tenant, f.id DESC
