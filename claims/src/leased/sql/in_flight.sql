-- How many claims of a scope are in progress, and the age of the oldest, in milliseconds.
-- $1 scope.
-- Index: inbox_claim_pkey, by its first column. Locking: none.
SELECT count(*) FILTER (WHERE state = 'running') AS running,
       count(*) FILTER (WHERE state = 'failed') AS failed,
       count(*) FILTER (WHERE state = 'unknown') AS unknown,
       coalesce((1000 * least(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM min(created_at)), -1e12), 1e12))::bigint, 0) AS oldest_milliseconds
FROM {schema}.inbox_claim
WHERE scope = $1::text
