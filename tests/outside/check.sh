#!/usr/bin/env bash
# Compiles the Rust of README and documents in a crate of its own: with the newest versions of the clients, with and without the inbox's
# features, and with the oldest versions that the workspace's Cargo.toml allows. All else is of the versions of our own lock file.
# Then runs the example on the test kit's front page, as it stands there.
# Usage: check.sh TARGET_DIRECTORY
set -euo pipefail
cd "$(dirname "$0")"
target=$1
clients=(async-nats deadpool-postgres tokio-postgres axum redis)

check() {
  echo "outside the workspace: $1"
  # Tests too: the documents have some.
  cargo check --quiet --tests --config ../profile.toml --target-dir "$target" "${@:2}"
}

cp ../../Cargo.lock Cargo.lock
cargo update --quiet "${clients[@]}"
check "newest clients"
check "newest clients, the inbox with its consumer and no other feature" --no-default-features

cp ../../Cargo.lock Cargo.lock
for client in "${clients[@]}"; do
  version=$(sed -n "s/^$client = .*version = \"\([^\"]*\)\".*/\1/p" ../../Cargo.toml)
  cargo update --quiet "$client" --precise "$version"
done
check "oldest clients"

cp ../../Cargo.lock Cargo.lock
echo "outside the workspace: the front page of the test kit"
(cd ../.. && "$target/debug/servers" run -- cargo test --quiet --manifest-path tests/outside/Cargo.toml \
  --config tests/profile.toml --target-dir "$target" a_charge_happens_once)
