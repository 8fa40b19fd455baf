#!/usr/bin/env bash
# Runs all tests on one version of the servers: suite.sh newest|oldest. Each line that it prints
# says of which version it is. No test is run twice: one that fails now and then is a defect.
set -uo pipefail
cd "$(dirname "$0")/.."
version=$1

# In memory where there is plenty: a test makes a database, a few hundred files, and on a disk that
# takes as long as the rest of the test. The programs of servers may be copied there, too.
room=$(df --output=avail -B1M /dev/shm 2>/dev/null | tail -1)
memory=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo 2>/dev/null)
if [ -z "${TMPDIR:-}" ] && [ "${room:-0}" -ge 8192 ] && [ "${memory:-0}" -ge 12288 ] &&
    ! grep -q ' /dev/shm .*noexec' /proc/mounts; then
    export TMPDIR=/dev/shm
fi

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
make --no-print-directory test SERVERS="$version" "$@" 2>&1 | sed -u "s/^/$version: /"
