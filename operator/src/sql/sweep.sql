-- Delete, or count, rows of inboxes that are past their retentions, in a range of blocks, and
-- record it: 0014_actions.sql has the function. It counts dead letters that messages wait for as
-- well, which the trigger keep_line keeps.
-- $1: first block; $2: the one after the last; $3: only count; $4: operator; $5: note.
-- Index: see sweep_inbox() in schema/migrations/0007_leases.sql; inbox_behind_line. Locking: as
-- there; rows that another session has locked are left.
WITH kept AS (
  SELECT count(*) AS letters
  FROM {schema}.dead_letter AS l
  JOIN {schema}.inbox_scope AS s ON s.scope = l.scope
  WHERE l.ctid >= format('(%s,0)', $1::bigint)::tid AND l.ctid < format('(%s,0)', $2::bigint)::tid
    AND l.created_at < statement_timestamp() - make_interval(secs => greatest(s.dead_letter_seconds, s.retention_seconds))
    AND s.dead_letter_seconds IS NOT NULL AND s.retention_seconds IS NOT NULL
    AND EXISTS (SELECT FROM {schema}.inbox_behind AS b WHERE b.scope = l.scope AND b.ordering_key = l.ordering_key)
)
SELECT p.keys, p.dead_letters - CASE WHEN $3 THEN k.letters ELSE 0 END AS dead_letters, p.claims, p.unknown_effects,
  k.letters AS kept_letters
FROM kept AS k, {schema}.prune_inbox($1, $2, $3, $4, $5) AS p
