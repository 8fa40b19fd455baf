#!/usr/bin/env bash
# psycopg 3.3.9 on PostgreSQL 18.4, with connection.transaction() after a SELECT
# Expected: the end of the block commits
# Seen: the SELECT has begun a transaction, so the block is a savepoint of it; close() then takes everything back
. "$(dirname "$0")/lib.sh"

pip_get 'psycopg[binary]==3.3.9'
postgres_start
cat >block.py <<'PY'
import psycopg
with psycopg.connect() as connection:
    connection.execute("CREATE TABLE outbox (id int)")
def stored(before):
    connection = psycopg.connect()
    if before:
        connection.execute("SELECT 1")
    with connection.transaction():
        connection.execute("INSERT INTO outbox VALUES (1)")
    connection.close()
    with psycopg.connect() as other:
        return other.execute("WITH gone AS (DELETE FROM outbox RETURNING 1) SELECT count(*) FROM gone").fetchone()[0]
print(stored(before=False), stored(before=True))
PY
same "$("$python" block.py)" '1 0' "one SELECT before it, and a transaction block commits nothing"
