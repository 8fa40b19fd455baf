#!/usr/bin/env bash
# Tries each artefact of `make dist` from outside, as its users install it: in a directory and an
# environment of its own, without the workspace's programs. Needs root for chroot; a part that cannot
# run says LEFT OUT. Ends with a line that counts.
# Usage: run.sh DIRECTORY [NAME...]; a name is that of a script beside this one
set -uo pipefail
cd "$(dirname "$0")/../.."
DIST=$(realpath "$1") ROOT=$PWD
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
GO=$ROOT/.dev/packaging/go
shift
export DIST ROOT VERSION GO
passed=0 failed=0
for script in tests/dist/*.sh; do
    name=$(basename "$script" .sh)
    [ "$name" != run ] || continue
    case " ${*:-$name} " in *" $name "*) ;; *) continue ;; esac
    work=$(mktemp -d)
    if (cd "$work" && timeout 300 bash -xeuo pipefail "$ROOT/$script") >"$work.log" 2>&1; then
        passed=$((passed + 1))
        echo "dist: $name passed"
        grep '^LEFT OUT' "$work.log" || true
    else
        failed=$((failed + 1))
        echo "dist: $name FAILED"
        tail -40 "$work.log"
    fi
    rm -rf "$work" "$work.log"
done
echo "dist: $passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
