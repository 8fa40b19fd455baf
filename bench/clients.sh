#!/usr/bin/env bash
# Each client's loop against the same loop without an inbox, in its own language: pull a message,
# BEGIN, one INSERT, COMMIT, acknowledge; 16 at once. Besides in batches of 64, 4 at once: with a
# handler for each message, and with one for a set. Messages a second, and the ratio of each round
# and of the medians; without the first fifth of the messages, which prepare the connections. First
# with durable commits, as in production, then without, which shows how much a message computes. The
# servers are for this alone: fsync is switched, the database with the schema oncebox keeps the
# rows, and the stream BENCH is replaced. The role of the URL is a superuser. Usage: clients.sh
# DATABASE_URL NATS_URL [MESSAGES] [ROUNDS] [LANGUAGES] after `make .dev/clients/python
# .dev/clients/typescript .dev/clients/go`.
set -euo pipefail
export DATABASE_URL=$1 NATS_URL=$2
messages=${3:-5000} rounds=${4:-3} languages=${5:-python typescript go}
cd "$(dirname "$0")/.."
root=$PWD programs=$PWD/bench/clients
export PYTHONPATH=$root/.dev/python:$root/clients/python
node=$(sed -n 's/^exec \([^ ]*\) .*/\1/p' .dev/clients/typescript/order)

sql() { psql "$DATABASE_URL" --no-psqlrc --quiet --tuples-only --command "SET client_min_messages = warning" "$@" >/dev/null; }
fsync() { sql --command "ALTER SYSTEM $1" --command "SELECT pg_reload_conf(), pg_sleep(0.5)"; }
trap 'fsync "RESET fsync"' EXIT
sql --command "CREATE TABLE IF NOT EXISTS effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint, cents bigint)"
cp "$programs/loop.ts" .dev/clients/typescript
cp "$programs/loop.go" .dev/clients/go
PATH=$root/.dev/toolchains/go/go/bin:$PATH go -C .dev/clients/go build -o loop loop.go

rate() {
  python3 "$programs/fill.py" "$messages"
  case $1 in
  python) python3 "$programs/loop.py" "$2" "$messages" ;;
  typescript) "$node" .dev/clients/typescript/loop.ts "$2" "$messages" ;;
  go) .dev/clients/go/loop "$2" "$messages" ;;
  esac
}
median() { sort -n | awk '{ rates[NR] = $1 } END { print rates[int((NR + 1) / 2)] }'; }
compare() { awk -v w="$1" -v b="$2" -v i="$3" -v m="$4" 'BEGIN { printf "%s: bare %d/s, %s %d/s (%.2f)\n", w, b, m, i, i / b }'; }
for durable in on off; do
  fsync "SET fsync = $durable"
  for language in $languages; do
    declare -A rates=()
    for _ in $(seq "$rounds"); do
      bare=$(rate "$language" bare)
      rates[bare]+="$bare"$'\n'
      for mode in inbox batch set; do
        found=$(rate "$language" "$mode")
        compare "$language, fsync $durable" "$bare" "$found" "$mode"
        rates[$mode]+="$found"$'\n'
      done
    done
    bare=$(printf %s "${rates[bare]}" | median)
    for mode in inbox batch set; do
      compare "$language, fsync $durable, medians" "$bare" "$(printf %s "${rates[$mode]}" | median)" "$mode"
    done
  done
done
