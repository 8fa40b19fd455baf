#!/usr/bin/env bash
# The figures of docs/design/growth.md: measure.sh SOCKET_DIRECTORY [ROWS]. Needs psql and pgbench on
# PATH, `oncebox` in ONCEBOX, and a PostgreSQL that may be filled, restarted never: databases `log`
# (as it is) and `ring` (with ring.sql) are made anew. Set fsync = off, a checkpoint_timeout of an
# hour and max_prepared_transactions > 0 on it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PGHOST=$1 PGUSER=postgres PGOPTIONS='-c client_min_messages=error'
rows=${2:-3000000}
sql() { psql -qAtX -v ON_ERROR_STOP=1 -d "$@"; }
scripts=$(mktemp -d)
trap 'rm -rf "$scripts"' EXIT
echo "SELECT oncebox.enqueue(gen_random_uuid()::text, 'orders.placed', decode(repeat('ab', 256), 'hex'));" >"$scripts/enqueue"
echo "INSERT INTO plain (key, payload) VALUES (gen_random_uuid(), decode(repeat('ab', 256), 'hex'));" >"$scripts/plain"
bench() { pgbench -n -M prepared -c 8 -j 2 -f "$scripts/$2" "${@:3}" "$1" 2>/dev/null; }
row() { printf '%-52s %s\n' "$1" "$2"; }

for database in log ring; do
    sql postgres -c "DROP DATABASE IF EXISTS $database" -c "CREATE DATABASE $database"
    "${ONCEBOX:-oncebox}" migrate --database-url "postgres://postgres@localhost/$database?host=$PGHOST" 2>/dev/null
    sql "$database" -c 'CREATE TABLE plain (id bigserial PRIMARY KEY, key uuid NOT NULL UNIQUE, payload bytea NOT NULL)'
done
sql ring -f "$here/ring.sql"

fill() { # DATABASE TABLE COUNT
    sql "$1" -c "INSERT INTO oncebox.$2 (id, lane, key, subject, payload) OVERRIDING SYSTEM VALUE
        SELECT nextval('oncebox.message_id_seq'), n % 16, gen_random_uuid(), 'orders.placed', decode(repeat('ab', 256), 'hex')
        FROM generate_series(1, $3) AS n" -c "VACUUM ANALYZE oncebox.$2"
}
wal() { # DATABASE SCRIPT MESSAGES
    sql "$1" -c CHECKPOINT
    local before=$(sql "$1" -c 'SELECT pg_current_wal_insert_lsn()')
    bench "$1" "$2" -t $(($3 / 8)) >/dev/null
    sql "$1" -c "SELECT round(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '$before') / $3)"
}
rates() { # of both and the plain table, in turns; the medians
    for _ in 1 2 3 4 5; do
        for pair in "log plain" "log enqueue" "ring enqueue"; do
            echo "$pair $(bench $pair -T 3 | awk '/^tps/ { print $3 }')"
        done
    done | sort | awk '{ at[$1 " " $2] = at[$1 " " $2] " " $3 } END {
        for (k in at) { split(at[k], v, " "); m[k] = v[3] }
        printf "log %.2f, ring %.2f of %d/s\n", m["log enqueue"] / m["log plain"], m["ring enqueue"] / m["log plain"], m["log plain"] }'
}
row 'enqueue / plain INSERT, empty' "$(rates)"
row 'WAL per message, empty' "log $(wal log enqueue 40000), ring $(wal ring enqueue 40000), plain $(wal log plain 40000)"

# What a week leaves: one table of ROWS, or six full slots of the ring and a half.
sql log -c 'TRUNCATE oncebox.message, plain'
sql ring -c 'TRUNCATE oncebox.message_0'
fill log message "$rows"
for slot in 0 1 2 3 4 5; do fill ring "message_$slot" $((rows * 2 / 13)); done
sql ring -c "SELECT setval('oncebox.turn', 6)" -c 'UPDATE oncebox.slot SET is_empty = false, is_live = false WHERE number < 6' \
    -c 'UPDATE oncebox.slot SET is_empty = false, is_live = true WHERE number = 6' >/dev/null
fill ring message_6 $((rows / 13))
row "enqueue / plain INSERT, $rows rows" "$(rates)"
for messages in 20000 100000 400000; do
    row "WAL per message, $rows rows, $messages to a checkpoint" "log $(wal log enqueue $messages), ring $(wal ring enqueue $messages)"
done

# Retention of a slot.
count=$(sql ring -c 'SELECT count(*) FROM oncebox.message_0')
sql ring -c CHECKPOINT
before=$(sql ring -c 'SELECT pg_current_wal_insert_lsn()')
begun=$(date +%s%N)
sql ring -c 'TRUNCATE oncebox.message_0'
row "TRUNCATE of $count rows" "$((($(date +%s%N) - begun) / 1000000)) ms, $(sql ring -c "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '$before')") bytes of WAL"
sql log -c CHECKPOINT
before=$(sql log -c 'SELECT pg_current_wal_insert_lsn()')
begun=$(date +%s%N)
sql log -c "DELETE FROM oncebox.message WHERE id IN (SELECT id FROM oncebox.message ORDER BY lane, id LIMIT $((count / 4)))" -c 'VACUUM oncebox.message'
row "DELETE and VACUUM, per row" "$((($(date +%s%N) - begun) / (count / 4) / 1000)) us, $(sql log -c "SELECT round(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '$before') / $((count / 4)))") bytes of WAL"

# Producers while the ring turns, every half a second, and is emptied.
latency() { # reads pgbench's log of times, in us
    cat "$scripts"/times.* | awk '{ print $3 }' | sort -n | awk '{ v[NR] = $1 } END { printf "p50 %.2f, p99 %.2f, most %.1f ms\n", v[int(NR * .5)] / 1000, v[int(NR * .99)] / 1000, v[NR] / 1000 }'
    rm -f "$scripts"/times.*
}
for turning in no yes; do
    if [ $turning = yes ]; then
        while sleep 0.5; do
            sql ring -c 'SELECT oncebox.empty_next()' -c 'SELECT oncebox.end_turn()' >>"$scripts/turns" || true
        done &
        turner=$!
    fi
    bench ring enqueue -T 20 -R 3000 -l --log-prefix="$scripts/times" >/dev/null
    if [ $turning = yes ]; then
        kill $turner
        wait $turner 2>/dev/null || true
        row 'producers at 3,000/s, the ring turns' "$(latency), $(grep -c turned "$scripts/turns") turns, $(grep -c busy "$scripts/turns") tries more"
    else
        row 'producers at 3,000/s' "$(latency)"
    fi
done
