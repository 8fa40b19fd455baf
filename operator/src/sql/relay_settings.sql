-- With which settings the relays run that were seen lately: more than one row means that they
-- differ.
-- $1: seconds. Index: none; a row per relay. Locking: none.
SELECT r.retention_seconds, r.dead_blocks, count(*) AS relays
FROM {schema}.relay AS r
WHERE r.seen_at >= clock_timestamp() - make_interval(secs => $1)
GROUP BY r.retention_seconds, r.dead_blocks
ORDER BY count(*) DESC, r.retention_seconds, r.dead_blocks
