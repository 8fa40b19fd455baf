-- About how many messages are in segments of the log that are past the retention time.
-- $1: retention time in seconds. Locking: none.
SELECT coalesce(sum({schema}.count_segment(s.number)), 0)::bigint AS messages
FROM {schema}.old_segments($1::float8) AS s
