#!/usr/bin/env bash
# The inbox's SQL functions against the bare transaction of a handler with a single INSERT, and the
# INSERT that the Rust inbox claims with in their place: transactions a second by pgbench, and the
# ratio of each round. The database has the schema oncebox; the rows stay in it. Usage: functions.sh
# DATABASE_URL [CLIENTS] [SECONDS] [ROUNDS]
set -euo pipefail
url=$1 clients=${2:-16} seconds=${3:-5} rounds=${4:-5}
scripts=$(mktemp -d)
trap 'rm -rf "$scripts"' EXIT

psql "$url" --no-psqlrc --quiet <<'SQL'
SET client_min_messages = warning;
CREATE TABLE IF NOT EXISTS effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint, cents bigint);
SELECT oncebox.register_scope('bench-functions') \g /dev/null
SQL

effect='INSERT INTO effect (customer, cents) VALUES (:c, 100);'
draw='\set c random(1, 9000000000000000000)'
cat >"$scripts/bare" <<SQL
$draw
BEGIN;
$effect
COMMIT;
SQL
# BEGIN and the claim are sent together, as settle and COMMIT are: as many round trips as the bare one has.
cat >"$scripts/functions" <<SQL
$draw
\startpipeline
BEGIN DEFERRABLE;
SELECT answer, outcome FROM oncebox.claim('bench-functions', 'order-' || :c::bigint, '{"order": 4711, "cents": 100}');
\endpipeline
$effect
\startpipeline
SELECT oncebox.settle('bench-functions', 'order-' || :c::bigint);
COMMIT;
\endpipeline
SQL
cat >"$scripts/statement" <<SQL
$draw
\startpipeline
BEGIN DEFERRABLE;
INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status)
SELECT 'bench-statement', '', 'order-' || :c::bigint, '\x00', 'completed' WHERE pg_try_advisory_xact_lock(:c);
\endpipeline
$effect
COMMIT;
SQL

rate() {
  pgbench --no-vacuum --protocol=prepared --client="$clients" --jobs=2 --time="$seconds" --file="$scripts/$1" "$url" 2>/dev/null |
    awk '/^tps/ { print int($3) }'
}
for _ in $(seq "$rounds"); do
  bare=$(rate bare) functions=$(rate functions) statement=$(rate statement)
  awk -v b="$bare" -v f="$functions" -v s="$statement" \
    'BEGIN { printf "bare %d/s, functions %d/s (%.2f), statement %d/s (%.2f)\n", b, f, f / b, s, s / b }'
done
