-- Fail, and end the session, unless this is the transaction that was begun with a cursor, see
-- `begin.sql`. Writes are sent behind it before it is answered: where a handler has ended its
-- transaction, each of them would be committed by itself. PostgreSQL reads no further statement of
-- a session that is ended.
-- No parameters. Index: none; a view of the session's cursors. Locking: none.
SELECT 1 / (CASE
    WHEN EXISTS (SELECT FROM pg_cursors WHERE name = 'oncebox_claim') THEN 1
    WHEN pg_terminate_backend(pg_backend_pid()) THEN 0
    ELSE 0
  END)
