#!/usr/bin/env bash
# Builds the program that is shipped, and prints its path. Here for x86-64 against glibc 2.17, with
# zig as the linker, which needs no cross toolchain. With DIST_NATIVE=1 cargo builds for DIST_TARGET
# (unset: this machine) by itself: for static musl and macOS, on a machine that has that target.
# Usage: program.sh TARGET_DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/.."
options=(--profile shipping --locked --quiet --package oncebox-cli --target-dir "$1")
if [ "${DIST_NATIVE:-}" = 1 ]; then
    cargo build "${options[@]}" ${DIST_TARGET:+--target "$DIST_TARGET"} >&2
    echo "$1/${DIST_TARGET:+$DIST_TARGET/}shipping/oncebox"
else
    export PYTHONPATH=$PWD/.dev/packaging PATH=$PWD/.dev/packaging/bin:$PATH
    target=${DIST_TARGET:-x86_64-unknown-linux-gnu.2.17}
    cargo-zigbuild zigbuild "${options[@]}" --target "$target" >&2
    # The version of glibc is zig's, and no part of the folder's name.
    echo "$1/${target%.[0-9]*.[0-9]*}/shipping/oncebox"
fi
