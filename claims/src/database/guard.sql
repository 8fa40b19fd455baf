-- Fail, and end the session, unless a transaction of ours is open, which is DEFERRABLE, see
-- `begin.sql`. Writes are sent after it before it is answered: where a handler has ended its
-- transaction, each of them would be committed by itself. PostgreSQL reads no further statement of
-- a session that is ended. In another DEFERRABLE transaction the commit fails.
-- No parameters, no index. Locking: none.
SELECT 1 / (CASE
    WHEN current_setting('transaction_deferrable') <> current_setting('default_transaction_deferrable') THEN 1
    WHEN pg_terminate_backend(pg_backend_pid()) THEN 0
    ELSE 0
  END)
