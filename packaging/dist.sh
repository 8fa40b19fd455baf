#!/usr/bin/env bash
# Makes everything that a release has, from the program: archive, packages of Debian and RPM, image,
# wheels, packages of npm, the Go module, crates, chart, formula, bill of materials, licences,
# checksums. packaging/README.md lists them. DIST_ONLY=program leaves out all that is the same for
# every machine; DIST_PLATFORM names another machine than x86_64-linux-gnu.
# Usage: dist.sh PROGRAM TARGET_DIRECTORY; writes TARGET_DIRECTORY/dist
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "$1") target=$(realpath "$2")
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
PLATFORM=${DIST_PLATFORM:-x86_64-linux-gnu}
# The time of the commit in every archive, so that the same commit gives the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
OUT=$target/dist STAGE=$target/dist-stage ROOT=$PWD
export VERSION PLATFORM SOURCE_DATE_EPOCH OUT STAGE ROOT
export PYTHONPATH=$PWD/.dev/packaging PATH=$PWD/.dev/packaging/bin:$PATH

rm -rf "$OUT" "$STAGE"
mkdir -p "$OUT"/{python,npm,go,crates,helm} "$STAGE"
machine=(stage archive)
# The static program needs no package of a distribution.
case $PLATFORM in *-linux-gnu) machine+=(linux_packages) ;; esac
# The image has the C library of this machine, or none if the program is static.
case $PLATFORM in *-linux-*) machine+=(image) ;; esac
machine+=(wheel_of_program npm_of_program)
everywhere=(python_client typescript_client go_module crates chart formula)

source packaging/parts.sh
for part in "${machine[@]}"; do "$part" "$program"; done
if [ "${DIST_ONLY:-}" != program ]; then
    for part in "${everywhere[@]}"; do "$part"; done
fi
(cd "$OUT" && find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >SHA256SUMS)
rm -rf "$STAGE"
find "$OUT" -type d -empty -delete
(cd "$OUT" && du --apparent-size -ah . | sort -k2)
