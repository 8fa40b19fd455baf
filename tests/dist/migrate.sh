# The tools that teams migrate with install and upgrade the schema from the files of `oncebox migrate
# --extract`, and end where `oncebox migrate` ends: psql, Alembic, goose, golang-migrate, Flyway.
bin=$(ls -d /usr/lib/postgresql/*/bin | sort --version-sort | tail -1 || true)
if [ -z "$bin" ]; then echo "LEFT OUT: there is no PostgreSQL here (Debian: postgresql-15)" && exit 0; fi
tools=$ROOT/.dev/migrators
tar -xzf "$DIST/oncebox-$VERSION-x86_64-linux-gnu.tar.gz"
oncebox=$PWD/oncebox-$VERSION/bin/oncebox

# PostgreSQL does not run as root.
as_nobody() { if [ "$(id -u)" = 0 ]; then runuser -u nobody -- "$@"; else "$@"; fi; }
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
chmod 755 . && mkdir data && { [ "$(id -u)" != 0 ] || chown nobody data; }
as_nobody "$bin/initdb" --auth=trust --username=postgres --no-sync --pgdata=data/pg >/dev/null
as_nobody "$bin/pg_ctl" --pgdata=data/pg --wait --timeout=60 --log=data/log \
    --options="-c listen_addresses=127.0.0.1 -p $port -c unix_socket_directories=$PWD/data -c fsync=off" start >/dev/null
trap 'as_nobody "$bin/pg_ctl" --pgdata=data/pg --mode=immediate --wait --timeout=60 stop >/dev/null' EXIT
export PGHOST=$PWD/data PGPORT=$port PGUSER=postgres
url() { echo "postgres://postgres@/$1?host=$PGHOST&port=$port"; }
dump() { "$bin/pg_dump" --schema-only --schema=oncebox "$1" | grep -v '^\\\(un\)\?restrict'; }
new() { "$bin/createdb" "$1" && mkdir -p "files/$1"; }
extract() { "$oncebox" migrate --extract "files/$1" --format "$2" --role-prefix oncebox "${@:3}"; }

new expected
DATABASE_URL=$(url expected) "$oncebox" migrate --role-prefix oncebox
dump expected >expected.sql
latest=$("$bin/psql" --quiet --no-align --tuples-only --command 'SELECT max(version) FROM oncebox.migration' expected)

run_plain() { for file in files/plain/*.sql; do "$bin/psql" --quiet --set=ON_ERROR_STOP=1 --file="$file" plain >/dev/null; done; }
run_goose() { "$tools/goose" -dir files/goose postgres "host=$PGHOST port=$port user=postgres dbname=goose" up; }
run_golang-migrate() { "$tools/migrate" -path files/golang-migrate -database "$(url golang-migrate)&sslmode=disable" up; }
run_alembic() {
    (cd files/alembic && PYTHONPATH=$tools/python python3 -m alembic --config ../../alembic.ini upgrade head)
}
cat >alembic.ini <<INI
[alembic]
script_location = $PWD/alembic
version_locations = $PWD/files/alembic
path_separator = os
sqlalchemy.url = postgresql+psycopg://postgres@/alembic?host=$PGHOST&port=$port
INI
mkdir alembic && cat >alembic/env.py <<'PYTHON'
from alembic import context
from sqlalchemy import create_engine

with create_engine(context.config.get_main_option("sqlalchemy.url")).connect() as connection:
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
PYTHON

run_flyway() {
    java -cp "$tools/flyway/*" "$ROOT/packaging/migrators/Migrate.java" "jdbc:postgresql://127.0.0.1:$port/flyway" postgres files/flyway
}
run=(plain goose golang-migrate alembic)
if [ -d "$tools/flyway" ] && command -v java >/dev/null; then
    run+=(flyway)
else
    echo "LEFT OUT: Flyway needs Java and Maven"
fi
for tool in "${run[@]}"; do
    new "$tool"
    # A migration of the team's own was there before.
    case $tool in
    plain) echo 'CREATE TABLE own ();' >"files/$tool/0007_own.sql" ;;
    flyway) echo 'CREATE TABLE own ();' >"files/$tool/V7__own.sql" ;;
    goose) printf -- '-- +goose Up\nCREATE TABLE own ();\n' >"files/$tool/00007_own.sql" ;;
    golang-migrate) echo 'CREATE TABLE own ();' >"files/$tool/000007_own.up.sql" ;;
    alembic)
        printf 'from alembic import op\nrevision = "own"\ndown_revision = None\n\n\ndef upgrade():\n    op.execute("CREATE TABLE own ()")\n' \
            >"files/$tool/own.py"
        ;;
    esac
    extract "$tool" "$tool" >/dev/null
    "run_$tool"
    dump "$tool" | diff expected.sql - || { echo "$tool: another schema" && exit 1; }
    DATABASE_URL=$(url "$tool") "$oncebox" migrate --check
    # An upgrade: the files of the next release follow those that have run. The rights come again.
    if [ "$tool" = plain ]; then rm files/plain/*; fi
    "$bin/psql" --quiet --command 'REVOKE USAGE ON SCHEMA oncebox FROM oncebox_relay' "$tool"
    extract "$tool" "$tool" --from "$latest" >new-files
    [ "$(wc -l <new-files)" = 1 ]
    "run_$tool"
    # In another order, since one was taken away.
    dump "$tool" | sort | diff <(sort expected.sql) - || { echo "$tool: another schema after the upgrade" && exit 1; }
    echo "$tool: installed and upgraded"
done
