#!/usr/bin/env bash
# Packages each library crate as for a registry, and compiles what was packed, each by itself with its default features: so
# a package has all its files, and no feature that only another member of the workspace turns on.
# Not `cargo package` with its own verification, which looks for siblings in the registry unless they may be published.
# Usage: packages.sh TARGET_DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
packed=$target/package
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
crates=()
for library in */src/lib.rs; do
  crate=${library%%/*}
  case $crate in examples | tests | bench | model) ;; *) crates+=("$crate") ;; esac
done

cargo package --quiet --allow-dirty --no-verify --exclude-lockfile --target-dir "$target" "${crates[@]/#/--package=oncebox-}" 2>&1 |
  { grep -v -e 'manifest has no documentation' -e '^ *|$' -e 'note: see' -e '^ *= note' || true; }

# As the workspace has them, so that what is the same is compiled once.
options=(--config tests/profile.toml)
for crate in "${crates[@]}"; do
  folder=$packed/oncebox-$crate-$version
  rm -rf "$folder"
  # Packed files have the time of no change: with it, cargo would take what it compiled of older ones.
  tar --touch -xzf "$folder.crate" -C "$packed"
  cp Cargo.lock "$folder/Cargo.lock"
  # The packages lie inside the workspace's folder, and are none of its members.
  printf '\n[workspace]\n' >>"$folder/Cargo.toml"
  options+=(--config "patch.crates-io.oncebox-$crate.path=\"$folder\"")
done
for crate in "${crates[@]}"; do
  echo "packaged and alone: oncebox-$crate"
  cargo check --quiet --manifest-path "$packed/oncebox-$crate-$version/Cargo.toml" --target-dir "$target" "${options[@]}"
done

# Without its consumer the inbox links no client of NATS.
echo "packaged and alone: oncebox-inbox without features"
bare=(--manifest-path "$packed/oncebox-inbox-$version/Cargo.toml" --no-default-features "${options[@]}")
cargo check --quiet --target-dir "$target" "${bare[@]}"
if cargo tree --quiet --edges normal "${bare[@]}" | grep async-nats; then
  echo "oncebox-inbox links async-nats without its feature nats"
  exit 1
fi
