#!/usr/bin/env bash
# The pages of the console over ten million messages, 5,000 dead messages and 5,000 dead letters:
# server time, statements and bytes of each. Makes a server of its own in a directory that goes
# afterwards; some minutes, and 10 GB.
# Usage: bench/pages.sh ONCEBOX POSTGRES_BIN DIRECTORY [MESSAGES]; not as root.
set -euo pipefail
oncebox=$1 bin=$2 dir=$(mktemp -d "$3/pages.XXXX") messages=${4:-10000000}
port=${PORT:-54399} at=127.0.0.1:${CONSOLE_PORT:-8399} url=postgres://postgres@127.0.0.1:$port/postgres
trap 'kill ${console:-} 2>/dev/null || true; "$bin/pg_ctl" -D "$dir/data" -m immediate stop >/dev/null 2>&1; rm -rf "$dir"' EXIT
"$bin/initdb" -D "$dir/data" -U postgres -A trust >/dev/null
printf '%s\n' fsync=off shared_buffers=1GB max_wal_size=4GB "log_line_prefix='%a: '" >>"$dir/data/postgresql.conf"
"$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -o "-p $port -k $dir" start >/dev/null
"$oncebox" migrate --database-url "$url" >/dev/null
sql() { "$bin/psql" "$url" --no-psqlrc --quiet --tuples-only --no-align -v ON_ERROR_STOP=1 "$@"; }

for turn in 0 1 2 3 4 5 6; do
  sql -v turn=$turn -v count=$((messages / 7)) <<'SQL'
INSERT INTO oncebox.message_:turn (lane, key, subject, ordering_key, payload, created_at)
SELECT oncebox.lane_of('customer-' || n % 50000), 'order-' || :turn || '-' || n || ':pay', 'orders.' || (ARRAY['placed', 'paid', 'sent'])[n % 3 + 1],
  'customer-' || n % 50000, convert_to(repeat('x', 200), 'UTF8'), now() - interval '1 day' * (7 - :turn - n / :count::numeric)
FROM generate_series(1, :count) AS n;
SELECT oncebox.end_turn(0, 1000, 0) WHERE :turn < 6;
SQL
done >/dev/null
sql >/dev/null <<'SQL'
INSERT INTO oncebox.cursor (lane, number, floor, high, system_identifier)
SELECT c.lane, c.number + 1, m.id, m.id, c.system_identifier
FROM oncebox.lane_cursor AS c, (SELECT max(id) AS id FROM oncebox.log) AS m;
SELECT oncebox.drain_segments();
INSERT INTO oncebox.parked (lane, id, turn, key, subject, headers, payload, created_at, attempts, error, dead_at)
SELECT m.lane, m.id, 6, m.key, m.subject, m.headers, m.payload, m.created_at, 20, 'no stream takes ' || m.subject, now()
FROM oncebox.message_6 AS m ORDER BY m.lane, m.id LIMIT 5000;
INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, stream, stream_sequence, stored_at, deliveries, reason)
SELECT 'shop:pay', '', 'order-1-' || n || ':pay', 'orders.paid', '{"Idempotency-Key": "k"}', repeat('x', 200)::bytea, 'ORDERS', n, now(), 20, 'no table ' || n % 9
FROM generate_series(1, 5000) AS n;
INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status, created_at)
SELECT 'shop:pay', '', 'order-' || t || '-' || n || ':pay', '\x00', 'completed', now() - interval '1 day' * (7 - t)
FROM generate_series(0, 6) AS t, generate_series(5001, 200000) AS n;
INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, failures, reason, failed_at, due_at, subject)
SELECT 'shop:pay', '', 'order-2-' || n || ':pay', 'm', 3, 'no table', now(), now(), 'orders.paid' FROM generate_series(1, 2000) AS n;
INSERT INTO oncebox.audit (operator, action, lane, message_id, key, subject, reason)
SELECT 'mina', 'retry', 0, n, 'order-3-' || n || ':pay', 'orders.paid', 'no stream' FROM generate_series(1, 200000) AS n;
INSERT INTO oncebox.history (at, relay, version, leads, seconds, stored, subjects, counts, backlog, parked, dead, delayed, failing, dead_letters)
SELECT date_trunc('minute', now()) - interval '1 minute' * n, '00000000-0000-0000-0000-000000000001', '0.1.0', true, 60, 900, '{orders.paid,orders.sent}', '{600,300}', 5, 5, 5, 5, 5, 5
FROM generate_series(1, 10080) AS n;
SELECT oncebox.enqueue_at('later-' || n, 'orders.paid', 'p', now() + interval '1 day') FROM generate_series(1, 5000) AS n;
VACUUM ANALYZE;
CHECKPOINT;
ALTER SYSTEM SET log_statement = 'all';
SELECT pg_reload_conf();
SQL

"$oncebox" console --database-url "$url" --listen "$at" --allow-actions --show-payloads --log error & console=$!
until curl -sf "http://$at/api/v1/databases" | grep -q '"is_known":true'; do sleep 0.2; done
statements() { grep -cE '^oncebox.*: LOG:  (execute|statement)' "$dir/log" || true; }
printf '| page | median | statements | bytes |\n|---|---|---|---|\n'
for page in / /db/postgres /db/postgres/history /db/postgres/history?range=week /db/postgres/set-aside '/db/postgres/set-aside?kind=dead' \
  '/db/postgres/set-aside?kind=failing' '/db/postgres/set-aside?kind=dead-letters' /db/postgres/letter?id=7 '/db/postgres/edit?kind=dead-letters&id=7' \
  /db/postgres/message?key=order-3-77:pay /key?key=order-3-77 /key?key=order-1-77 /key?key=nobody '/find?q=order-3-77' '/find?q=customer-77' \
  '/db/postgres/act?kind=dead-letters&action=retry&all=1' /db/postgres/sagas /db/postgres/delayed /db/postgres/replays /db/postgres/pauses \
  /db/postgres/losses /db/postgres/doctor /db/postgres/audit /jobs /settings; do
  for _ in 1 2 3 4 5; do
    before=$(statements)
    curl -s -o /dev/null -w '%{time_starttransfer} %{size_download}' "http://$at$page"
    echo " $(($(statements) - before))"
  done | sort -n | awk -v page="$page" '{ time[NR] = $1; bytes = $2; if (NR == 1 || $3 < least) least = $3 }
    END { printf "| %s | %.1f ms | %d | %d |\n", page, time[3] * 1000, least, bytes }'
done
