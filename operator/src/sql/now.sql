-- The time of the database. No parameters. Index: none. Locking: none.
SELECT clock_timestamp() AS now
