#!/usr/bin/env bash
# PostgreSQL 18.4, logical decoding of a publication with publish_via_partition_root
# Expected: TRUNCATE of a partition, as a ring of tables does it, reaches subscribers as other changes do
# Seen: it is not sent; without the option it is
. "$(dirname "$0")/lib.sh"

postgres_start wal_level=logical
sql -c "CREATE TABLE outbox (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE outbox_1 PARTITION OF outbox DEFAULT;
        CREATE PUBLICATION root FOR TABLE outbox WITH (publish_via_partition_root = true);
        CREATE PUBLICATION leaf FOR TABLE outbox"
for p in root leaf; do sql -c "SELECT FROM pg_create_logical_replication_slot('$p', 'pgoutput')" >/dev/null; done
sql -c "INSERT INTO outbox VALUES (1)" -c "TRUNCATE outbox_1"
changes() { # The first byte of each change: I for an insert, T for a truncation.
    sql -c "SELECT string_agg(k, '' ORDER BY n) FROM (SELECT n, chr(get_byte(data, 0)) k FROM
            pg_logical_slot_get_binary_changes('$1', NULL, NULL, 'proto_version', '1', 'publication_names', '$1')
            WITH ORDINALITY AS c(lsn, xid, data, n)) t WHERE k IN ('I', 'T')"
}
same "root $(changes root) leaf $(changes leaf)" 'root I leaf IT' "the subscriber keeps every row that the ring has dropped"
