-- The expectations, and how many messages each misses: 100 rows at most.
-- Times written by hand may be infinite, which PostgreSQL before 17 does not subtract. Index:
-- expectation_pkey. Locking: none.
SELECT e.subject, e.scope, e.within_seconds, e.inbox_database, e.unhandled, e.oldest_key,
  (extract(epoch FROM statement_timestamp()) - extract(epoch FROM e.looked_at))::float8 AS looked_seconds,
  coalesce(extract(epoch FROM statement_timestamp()) - extract(epoch FROM e.oldest_at), 0)::float8 AS oldest_seconds
FROM {schema}.expectation AS e
ORDER BY e.id
