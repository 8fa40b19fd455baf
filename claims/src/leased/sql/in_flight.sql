-- How many claims of a scope are in progress, and the age of the oldest, in milliseconds.
-- $1 scope.
-- Index: inbox_claim_pkey, by its first column. Locking: none.
SELECT count(*) FILTER (WHERE state = 'running') AS running,
       count(*) FILTER (WHERE state = 'failed') AS failed,
       count(*) FILTER (WHERE state = 'unknown') AS unknown,
       (1000 * least(greatest(coalesce(extract(epoch FROM clock_timestamp()) - extract(epoch FROM min(created_at)), 0), -1e12), 1e12))::bigint AS oldest_milliseconds
FROM {schema}.inbox_claim
WHERE scope = $1::text
