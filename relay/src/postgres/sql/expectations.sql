-- The expectations, and how many messages each misses: 100 rows at most.
-- Index: expectation_pkey. Locking: none.
SELECT e.subject, e.scope, e.within_seconds, e.inbox_database, e.unhandled, e.oldest_key,
  extract(epoch FROM statement_timestamp() - e.looked_at)::float8 AS looked_seconds,
  coalesce(extract(epoch FROM statement_timestamp() - e.oldest_at), 0)::float8 AS oldest_seconds
FROM {schema}.expectation AS e
ORDER BY e.id
