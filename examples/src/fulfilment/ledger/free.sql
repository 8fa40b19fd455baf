-- How much of all items is free. No parameters. Index: none. Locks: none.
SELECT coalesce(sum(s.free), 0)::bigint AS free
FROM stock AS s
