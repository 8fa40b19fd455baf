#!/usr/bin/env bash
# Runs all tests on one version of the servers: suite.sh newest|oldest. Each line that it prints
# says of which version it is.
#
# At most three integration tests that failed are run once more, one by one. Two suites side by side
# on two processors are a machine that is many times slower than a developer's, and some waits of
# real servers have no event to await. A test that passes then is named at the end and fails
# nothing; it is a defect all the same, of the test or of the program: see CONTRIBUTING.md.
set -uo pipefail
cd "$(dirname "$0")/.."
version=$1
most=3
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# In memory where there is plenty: a test makes a database, a few hundred files, and on a disk that
# takes as long as the rest of the test. The programs of servers may be copied there, too.
room=$(df --output=avail -B1M /dev/shm 2>/dev/null | tail -1)
memory=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo 2>/dev/null)
if [ -z "${TMPDIR:-}" ] && [ "${room:-0}" -ge 8192 ] && [ "${memory:-0}" -ge 12288 ] &&
    ! grep -q ' /dev/shm .*noexec' /proc/mounts; then
    export TMPDIR=/dev/shm
fi

run() {
    make --no-print-directory test SERVERS="$version" "$@" 2>&1 | sed -u "s/^/$version: /" | tee "$log"
}

# The specification takes both processors for itself: `make model` checks it. The examples in the
# documentation of the crates need no server: once is enough.
set -- TARGETS="--workspace --exclude oncebox-model"
if [ "$version" = oldest ]; then
    # What these show does not depend on the servers' version: pages in a browser, alerts, the rules
    # of the sources, and of the clients their libraries, HTTP layers, helpers, and loops that are
    # killed. Browsers and the clients' runtimes keep both processors busy. The newest servers see
    # all of them; the oldest see how each client claims, orders and ends messages.
    once=(console::browser deploy::alerts tidy::
        clients::{contracts,effects,killer,libraries,programs,serving,testing,tracing,waking}::)
    set -- "$1 --tests" ARGS="${once[*]/#/--skip }"
fi
if run "$@"; then
    echo "the suite on the $version servers has passed"
    exit
fi
# Cargo names the targets that failed; the names of tests are known for integration tests alone.
targets=$(grep -cE "^$version:     \`-p .*\`$" "$log")
mapfile -t failed < <(sed -nE "s/^$version: test ([a-z0-9_:]+) \.\.\. FAILED$/\1/p" "$log" | sort -u)
if [ "$targets" = 1 ] && grep -q "^$version:     \`-p oncebox-tests --test it\`$" "$log" &&
    [ "${#failed[@]}" -ge 1 ] && [ "${#failed[@]}" -le "$most" ]; then
    echo "$version: once more, one by one: ${failed[*]}"
    if RUST_TEST_THREADS=1 run TARGETS="--workspace --test it" ARGS="--exact ${failed[*]}"; then
        for name in "${failed[@]}"; do
            echo "UNSTABLE on the $version servers, passed when it ran alone: $name"
        done
        echo "the suite on the $version servers has passed, but for unstable tests"
        exit
    fi
fi
echo "THE SUITE ON THE $version SERVERS HAS FAILED"
exit 1
