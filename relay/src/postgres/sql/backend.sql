-- The backend that serves this statement. Index: none. Locking: none.
SELECT pg_backend_pid()
