#!/usr/bin/env bash
# Installs the tools that teams migrate with, for tests/dist/migrate.sh: Alembic, goose and
# golang-migrate, for PostgreSQL alone; Flyway, where Maven is.
# Usage: install.sh DIRECTORY
set -euo pipefail
directory=$(realpath -m "$1")
cd "$(dirname "$0")"
rm -rf "$directory"
python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target "$directory/python" \
    --requirement python.txt
toolchain=$PWD/../../.dev/toolchains/go/go/bin
if [ -d "$toolchain" ]; then PATH=$toolchain:$PATH; fi
GOBIN=$directory go install -tags \
    'postgres no_clickhouse no_libsql no_mssql no_mysql no_sqlite3 no_vertica no_ydb no_duckdb' tool
if command -v mvn >/dev/null; then
    mvn --quiet --batch-mode dependency:copy-dependencies -DoutputDirectory="$directory/flyway"
fi
