-- The tables that are compared: all of the user's, and those of Oncebox that effects are in.
-- $1 schema of Oncebox. Of a partitioned table only the table is returned, not its partitions. No
-- index, no locking.
SELECT n.nspname || '.' || c.relname AS name,
       format('%I.%I', n.nspname, c.relname) AS quoted
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE (c.relkind IN ('r', 'p') OR c.relkind = 'v' AND n.nspname = $1::text AND c.relname = 'message')
  AND NOT c.relispartition
  AND n.nspname <> 'information_schema'
  AND n.nspname !~ '^pg_'
  AND (n.nspname <> $1::text OR c.relname IN ('inbox', 'message', 'dead_letter', 'saga', 'saga_step', 'saga_event'))
ORDER BY n.nspname, c.relname
