-- Messages that waited for a dead letter, and that their consumer is to run now: by inbox, how many
-- of the first.
-- $1: messages to look at, at most; $2: inboxes to return.
-- Index: inbox_behind_due, whole. Locking: none.
SELECT b.scope::text AS scope, count(*) AS messages, min(b.key)::text AS key
FROM (SELECT d.scope, d.key FROM {schema}.inbox_behind AS d WHERE d.is_due LIMIT $1) AS b
GROUP BY b.scope
ORDER BY count(*) DESC, b.scope
LIMIT $2
