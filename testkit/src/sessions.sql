-- How many others are connected to this database.
-- No parameters, no index, no locking.
SELECT count(*)
FROM pg_catalog.pg_stat_activity
WHERE datname = current_database()
  AND pid <> pg_backend_pid()
  AND backend_type = 'client backend'
