#!/usr/bin/env bash
# Each client's loop against the same loop without an inbox, in its own language: pull a message,
# BEGIN, one INSERT, COMMIT, acknowledge; 16 at once. Besides in batches of 64, 4 at once: with a
# handler for each message, in Python also with one whose statements go through a pipeline, and with
# one for a set. Java has no sets, and its bare loop also inserts the key, ON CONFLICT DO NOTHING.
# An effect under a lease is against a row of a table `pending` by hand, with two commits: before
# the call, and after it together with the INSERT; 16 at once, and the provider takes CALL_MS
# (default 0, so that nothing but the database is waited for).
#
# Messages a second and the processor time of PostgreSQL for each, with the ratios of each round and
# of the medians; the rate is without the first fifth of the messages, which prepare the
# connections. Every second round goes the other way round. First with durable commits, as in
# production, then without, which shows how much a message computes. The servers are for this alone,
# on this machine: fsync is switched, the database with the schema oncebox keeps the rows, and the
# stream BENCH is replaced. The role of the URL is a superuser. Usage: clients.sh DATABASE_URL
# NATS_URL [MESSAGES] [ROUNDS] [LANGUAGES] [MODES] [FSYNC] after `make .dev/clients/python
# .dev/clients/typescript .dev/clients/go .dev/clients/java`.
set -euo pipefail
export DATABASE_URL=$1 NATS_URL=$2 CALL_MS=${CALL_MS:-0}
messages=${3:-5000} rounds=${4:-3} languages=${5:-python typescript go java} modes=${6:-inbox batch pipelined set lease} settings=${7:-on off}
cd "$(dirname "$0")/.."
root=$PWD programs=$PWD/bench/clients
export PYTHONPATH=$root/.dev/python:$root/clients/python
node=$(sed -n 's/^exec \([^ ]*\) .*/\1/p' .dev/clients/typescript/order)
java=$root/.dev/clients/java/target

sql() { psql "$DATABASE_URL" --no-psqlrc --quiet --tuples-only --no-align --command "SET client_min_messages = warning" "$@"; }
fsync() { sql --command "ALTER SYSTEM $1" --command "SELECT pg_reload_conf(), pg_sleep(0.5)" >/dev/null; }
trap 'fsync "RESET fsync"' EXIT
sql --command "CREATE TABLE IF NOT EXISTS effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint, cents bigint);
  CREATE TABLE IF NOT EXISTS pending (key text PRIMARY KEY, receipt text);
  CREATE TABLE IF NOT EXISTS handled (key text PRIMARY KEY)"
postmaster=$(head -n 1 "$(sql --command "SHOW data_directory")/postmaster.pid")
for language in $languages; do
  case $language in
  typescript) cp "$programs/loop.ts" .dev/clients/typescript ;;
  go)
    cp "$programs/loop.go" .dev/clients/go
    PATH=$root/.dev/toolchains/go/go/bin:$PATH go -C .dev/clients/go build -o loop loop.go
    ;;
  java) javac -d "$java/bench" -cp "$java/classes:$java/lib/*" "$programs/Loop.java" ;;
  esac
done

# The processor time of PostgreSQL's processes, also of those that have ended, in microseconds.
spent() {
  sleep 0.5
  { cat /proc/[0-9]*/stat 2>/dev/null || true; } | awk -v postmaster="$postmaster" -v tick="$(getconf CLK_TCK)" '
    { pid = $1; sub(/.*\) /, "") }
    pid == postmaster || $2 == postmaster { ticks += $12 + $13 + $14 + $15 }
    END { printf "%d", ticks / tick * 1000000 }'
}
run() {
  case $1 in
  python) python3 "$programs/loop.py" "$2" "$messages" ;;
  typescript) "$node" .dev/clients/typescript/loop.ts "$2" "$messages" ;;
  go) .dev/clients/go/loop "$2" "$messages" ;;
  java) java -cp "$java/bench:$java/classes:$java/lib/*" oncebox.Loop "$2" "$messages" ;;
  esac
}
without() { for mode in $modes; do [[ " $1 " == *" $mode "* ]] || echo "$mode"; done | xargs; }
median() { sort -n | awk '{ figures[NR] = $1 } END { print figures[int((NR + 1) / 2)] }'; }
base() { if [ "$1" = lease ]; then echo pending; else echo bare; fi; }
compare() {
  awk -v w="$1" -v base="$2" -v b="$3" -v bp="$4" -v mode="$5" -v m="$6" -v mp="$7" 'BEGIN {
    printf "%s: %s %d/s %d us, %s %d/s %d us (%.2f, PostgreSQL %.2f)\n", w, base, b, bp, mode, m, mp, m / b, mp / bp }'
}
for durable in $settings; do
  fsync "SET fsync = $durable"
  for language in $languages; do
    declare -A rates=() spends=()
    case $language in
    python) own=$modes ;;
    java) own=$(without "pipelined set lease") ;;
    *) own=$(without pipelined) ;;
    esac
    measured=$(for mode in $own; do base "$mode"; echo "$mode"; done | awk '!seen[$0]++')
    for round in $(seq "$rounds"); do
      declare -A rate=() spend=()
      for mode in $(if ((round % 2)); then echo "$measured"; else tac <<<"$measured"; fi); do
        python3 "$programs/fill.py" "$messages"
        before=$(spent)
        rate[$mode]=$(run "$language" "$mode" | tail -n 1) # what clients log comes before
        spend[$mode]=$((($(spent) - before) / messages))
        rates[$mode]+=${rate[$mode]}$'\n'
        spends[$mode]+=${spend[$mode]}$'\n'
      done
      for mode in $own; do
        b=$(base "$mode")
        compare "$language, fsync $durable" "$b" "${rate[$b]}" "${spend[$b]}" "$mode" "${rate[$mode]}" "${spend[$mode]}"
      done
    done
    for mode in $own; do
      b=$(base "$mode")
      compare "$language, fsync $durable, medians" "$b" "$(printf %s "${rates[$b]}" | median)" "$(printf %s "${spends[$b]}" | median)" \
        "$mode" "$(printf %s "${rates[$mode]}" | median)" "$(printf %s "${spends[$mode]}" | median)"
    done
  done
done
