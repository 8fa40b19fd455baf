-- How many blocks the largest of the inboxes' tables has from which old rows are deleted. No
-- parameters. Index: none. Locking: none.
SELECT greatest(
         pg_relation_size('{schema}.inbox'),
         pg_relation_size('{schema}.dead_letter'),
         pg_relation_size('{schema}.inbox_claim')
       ) / current_setting('block_size')::bigint AS blocks
