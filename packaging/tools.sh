#!/usr/bin/env bash
# Builds the programs that packaging/tools pins, with the Go of this machine or the one that the
# tests of the Go client installed.
# Usage: tools.sh DIRECTORY
set -euo pipefail
directory=$(realpath -m "$1")
cd "$(dirname "$0")/tools"
toolchain=$PWD/../../.dev/toolchains/go/go/bin
if [ -d "$toolchain" ]; then PATH=$toolchain:$PATH; fi
GOBIN=$directory go install tool
