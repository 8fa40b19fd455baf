-- Answers to a saga that its orchestrator refused, the newest first: dead letters whose key, or
-- whose header In-Reply-To, is below the saga's key.
-- $1: the saga's key; $2: rows at most. Index: saga_key_unique, dead_letter_once for the letters of
-- the orchestrator, of which there are few. Locking: none.
SELECT
  d.id,
  d.key::text AS key,
  d.reason,
  d.created_at,
  jsonb_path_query_first(d.headers, '$."In-Reply-To"[*]') #>> '{}' AS command
FROM {schema}.saga AS s
JOIN {schema}.dead_letter AS d ON d.scope = s.scope || ':replies'
WHERE s.key = $1::text
  AND (starts_with(d.key, s.key || ':')
    OR starts_with(jsonb_path_query_first(d.headers, '$."In-Reply-To"[*]') #>> '{}', s.key || ':'))
ORDER BY d.id DESC
LIMIT $2
