-- Messages that are not in their inbox in time, the oldest first.
-- $1: a pattern, NULL = all; $2: an inbox, NULL = all; $3: rows at most. Index: none, 10,000 rows
-- for each expectation at most. Locking: none.
SELECT e.scope, u.key, u.subject, u.lane, u.id, u.created_at
FROM {schema}.unhandled AS u
JOIN {schema}.expectation AS e ON e.id = u.expectation
WHERE ($1::text IS NULL OR e.subject = $1::text) AND ($2::text IS NULL OR e.scope = $2::text)
ORDER BY u.created_at, u.id
LIMIT $3
