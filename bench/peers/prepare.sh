#!/usr/bin/env bash
# Builds the programs of `bench pipeline` that are not in Rust, from packages with pinned versions,
# as DIRECTORY/orders-go and DIRECTORY/orders-graphile. Usage: prepare.sh DIRECTORY, after
# `make .dev/clients/typescript .dev/clients/go`, which brings Go and Node.js where they are
# missing.
set -euo pipefail
directory=$1 peers=$(realpath "$(dirname "$0")")
tools=$(realpath "$peers/../../.dev")
mkdir -p "$directory/graphile"
PATH=$tools/toolchains/go/go/bin:$PATH go -C "$peers/orders" build -o "$directory/orders-go" .

node=$(sed -n 's/^exec \([^ ]*\) .*/\1/p' "$tools/clients/typescript/order")
cp "$peers"/graphile/* "$directory/graphile"
PATH=$PATH:$(dirname "$node") npm ci --silent --no-audit --no-fund --prefix "$directory/graphile"
printf '#!/bin/sh\nexec %s %s "$@"\n' "$node" "$directory/graphile/orders.mjs" >"$directory/orders-graphile"
chmod +x "$directory/orders-graphile"
