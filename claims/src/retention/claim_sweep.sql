-- Become the process that deletes keys older than their retention, when a sweep is under way or
-- due, and nobody else is. A sweep of the tables, as far as the longest goes, is due when the
-- shortest retention has passed by 1/64 since the last, once an hour at most and every second at
-- least; never while every consumer keeps its keys for ever. No parameters.
-- Index: inbox_sweep_pkey; inbox_scope has a row for each consumer. Locking: the one row, with SKIP
-- LOCKED, until the end of the transaction, which PostgreSQL ends when its process is silent.
SELECT w.next_block::text,
       (greatest(
         pg_relation_size('{schema}.inbox'),
         pg_relation_size('{schema}.dead_letter'),
         pg_relation_size('{schema}.inbox_claim')
       ) / current_setting('block_size')::bigint)::text AS blocks
FROM {schema}.inbox_sweep AS w
WHERE EXISTS (SELECT FROM {schema}.inbox_scope AS s WHERE s.retention_seconds IS NOT NULL)
  AND (
    w.next_block > 0
    OR w.finished_at IS NULL
    OR w.finished_at < statement_timestamp() - make_interval(secs => (
         SELECT greatest(1, least(3600, min(s.retention_seconds) / 64))
         FROM {schema}.inbox_scope AS s
       ))
  )
  AND set_config('idle_in_transaction_session_timeout', '60s', true) IS NOT NULL
FOR UPDATE OF w SKIP LOCKED
