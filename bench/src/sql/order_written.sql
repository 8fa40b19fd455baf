-- Committed transactions of this database, and the bytes of WAL of all. No parameters.
SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint
FROM pg_stat_database
WHERE datname = current_database()
