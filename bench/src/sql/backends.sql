-- The backends of a carrier of messages: the sessions in a database that have a name, as the
-- bench's own have none.
-- $1 the database. Reads no table; locks nothing.
SELECT pid
FROM pg_stat_activity
WHERE datname = $1::text AND backend_type = 'client backend' AND application_name <> ''
