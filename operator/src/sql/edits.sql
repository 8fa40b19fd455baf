-- The edits of a message that were not taken back, the oldest first, each with the key before and
-- after it.
-- $1: its key, or that of one of its edits. Index: audit_key, audit_undone. Locking: none.
SELECT a.key, split_part(a.reason, ';', 1) AS edited
FROM {schema}.audit AS a
CROSS JOIN (SELECT regexp_replace($1::text, ':oncebox-edit-[1-9][0-9]*$', '') COLLATE "C" AS root) AS r
WHERE a.action = 'edit'
  AND (a.key = r.root OR a.key > r.root || ':oncebox-edit-' AND a.key < r.root || ':oncebox-edit.')
  AND NOT EXISTS (SELECT FROM {schema}.audit AS u WHERE u.undoes = a.id)
ORDER BY a.id
