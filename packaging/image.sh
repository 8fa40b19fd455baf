#!/usr/bin/env bash
# Makes an image without Docker: an OCI layout, as one tar. It has the program, the certificates of
# public authorities, and the C library of this machine if the program needs one; no shell.
# Configured as by deploy/Containerfile, which is read for it.
# Usage: image.sh PROGRAM FILE
set -euo pipefail
root=$STAGE/rootfs layout=$STAGE/layout
umoci=$ROOT/.dev/packaging/go/umoci
export PATH=$ROOT/.dev/packaging/go:$PATH

mkdir -p "$root"/etc/ssl/certs "$root"/tmp
install --mode=755 "$1" "$root/oncebox"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
cp LICENSE-APACHE LICENSE-MIT "$OUT/THIRD-PARTY.txt" "$root"
# Each library that the program names, the loader, and the modules by which libc finds hosts.
libraries=$(ldd "$1" 2>/dev/null | grep -oE '/[^ ]+' || true)
for library in $libraries; do install -D --mode=755 "$(realpath "$library")" "$root$library"; done
if [ -n "$libraries" ]; then echo 'hosts: files dns' >"$root/etc/nsswitch.conf"; fi
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

architecture=amd64
case $PLATFORM in aarch64-*) architecture=arm64 ;; esac
# Of a line such as: ENTRYPOINT ["/oncebox"]
configured() { sed -n "s/^$1 //p" deploy/Containerfile | tail -1; }
created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
$umoci init --layout "$layout"
$umoci new --image "$layout:$VERSION"
$umoci insert --image "$layout:$VERSION" --history.created="$created" "$root" /
$umoci config --image "$layout:$VERSION" --no-history --created="$created" \
    --os=linux --architecture="$architecture" \
    --config.user="$(configured USER)" --config.exposedports="$(configured EXPOSE)/tcp" \
    --config.entrypoint="$(configured ENTRYPOINT | tr -d '[]"')" --config.cmd="$(configured CMD | tr -d '[]"')" \
    --config.label="org.opencontainers.image.title=oncebox" \
    --config.label="org.opencontainers.image.version=$VERSION" \
    --config.label="org.opencontainers.image.licenses=MIT OR Apache-2.0" \
    --config.label="org.opencontainers.image.revision=$(git rev-parse HEAD)"
$umoci gc --layout "$layout"
tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --directory "$layout" --file "$2" .
