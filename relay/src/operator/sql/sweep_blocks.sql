-- How many blocks the longest of the tables of inboxes has that are swept. No parameters. Index:
-- none. Locking: none.
SELECT greatest(
         pg_relation_size('{schema}.inbox'),
         pg_relation_size('{schema}.dead_letter'),
         pg_relation_size('{schema}.inbox_claim')
       ) / current_setting('block_size')::bigint AS blocks
