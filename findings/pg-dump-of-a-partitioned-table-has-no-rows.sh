#!/usr/bin/env bash
# PostgreSQL 18.4, pg_dump --table of a partitioned table
# Expected: the dump of the table has its rows
# Seen: it has none: rows belong to the partitions, and those are left out; --table-and-children takes them
. "$(dirname "$0")/lib.sh"

postgres_start
sql -c "CREATE TABLE outbox (id int) PARTITION BY RANGE (id); CREATE TABLE outbox_1 PARTITION OF outbox DEFAULT;
        INSERT INTO outbox SELECT generate_series(1, 5)"
count() { "$bin/pg_dump" --data-only --inserts "$@" | grep -c '^INSERT' || true; }
same "$(count --table=outbox) $(count --table-and-children=outbox)" '0 5' "pg_dump --table=outbox ends well, and holds nothing"
