-- Whether a database is there. $1 its name. Index: pg_database_datname_index. No locking.
SELECT FROM pg_catalog.pg_database WHERE datname = $1::text
