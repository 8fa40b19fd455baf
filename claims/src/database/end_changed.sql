-- End this session if a handler has changed its search path for good: the next handlers would find
-- other tables, or none. Asked only after a failure, since it costs about as much as a small
-- message. A search path that is set for the transaction, for the role or by a connection's options
-- does not count.
-- No parameters. Index: none; a view of all settings. Locking: none.
SELECT pg_terminate_backend(pg_backend_pid())::text
FROM pg_settings
WHERE name = 'search_path'
  AND source = 'session'
