-- Write a temporary file of 0.7 MB, which is gone when the statement ends, and so find out whether
-- the disk is full: 40,000 rows are more than a work_mem of 64 kB holds. An INSERT that is rolled
-- back would find free room in its table, and needs rights. Index: none. Locking: none.
SELECT count(*) FROM generate_series(1::bigint, 40000)
