-- The server, the role, and the settings that a promise rests on. Index: none: one row. Locking:
-- none.
SELECT
  clock_timestamp() AS now,
  current_setting('server_version') AS version,
  current_setting('server_version_num')::integer AS version_number,
  current_user::text AS role_name,
  (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user) AS is_superuser,
  pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean AS is_read_only,
  current_setting('fsync')::boolean AS fsyncs
