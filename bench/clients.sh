#!/usr/bin/env bash
# Each client's loop against the same loop without an inbox, in its own language: pull a message,
# BEGIN, one INSERT, COMMIT, acknowledge; 16 at once. Messages a second, and the ratio of each round.
# The database has the schema oncebox; what is written stays in it. The stream BENCH is replaced.
# Usage: clients.sh DATABASE_URL NATS_URL [MESSAGES] [ROUNDS], after `make .dev/clients/python`, and so on.
set -euo pipefail
export DATABASE_URL=$1 NATS_URL=$2
messages=${3:-5000} rounds=${4:-5}
cd "$(dirname "$0")/.."
root=$PWD programs=$PWD/bench/clients
export PYTHONPATH=$root/.dev/python:$root/clients/python
node=$(sed -n 's/^exec \([^ ]*\) .*/\1/p' .dev/clients/typescript/order)

psql "$DATABASE_URL" --no-psqlrc --quiet --command "SET client_min_messages = warning" --command \
  "CREATE TABLE IF NOT EXISTS effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint, cents bigint)"
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
for language in python typescript go; do
  for _ in $(seq "$rounds"); do
    bare=$(rate "$language" bare) inbox=$(rate "$language" inbox)
    awk -v l="$language" -v b="$bare" -v i="$inbox" 'BEGIN { printf "%s: bare %d/s, inbox %d/s (%.2f)\n", l, b, i, i / b }'
  done
done
