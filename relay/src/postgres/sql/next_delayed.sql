-- In how many seconds the next delayed message is due, or how long it has been due, below 0; no row
-- when there is none, or when this database is not the outbox's home. A cheap look before a
-- transaction that moves.
-- Index: delayed_due. Locking: none.
SELECT (extract(epoch FROM d.not_before) - extract(epoch FROM clock_timestamp()))::float8 AS seconds
FROM {schema}.delayed AS d
WHERE NOT EXISTS (SELECT FROM {schema}.home_here AS h WHERE h.verdict IN ('copy', 'moved'))
ORDER BY d.not_before
LIMIT 1
