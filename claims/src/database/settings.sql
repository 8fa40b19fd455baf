-- Read two settings for claims: whether transactions are deferrable unless told otherwise, and the
-- version of the server.
-- No parameters, no index, no locking.
SELECT (current_setting('default_transaction_deferrable') = 'on')::text AS deferrable,
       current_setting('server_version_num') AS version
