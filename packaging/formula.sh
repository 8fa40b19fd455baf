#!/usr/bin/env bash
# Writes the formula for Homebrew, with the checksums of the archives that a folder has; a platform
# whose archive is missing keeps its mark. Where the archives are served from is known when a release
# is made: DIST_DOWNLOADS.
# Usage: formula.sh VERSION FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
formula=$2/oncebox.rb
sed -e "s|@VERSION@|$1|g" \
    -e "s|@DOWNLOADS@|${DIST_DOWNLOADS:-https://downloads.example/oncebox/$1}|g" packaging/oncebox.rb >"$formula"
for archive in "$2/oncebox-$1"-*.tar.gz; do
    platform=${archive#"$2/oncebox-$1-"}
    sum=$(sha256sum "$archive" | cut -d' ' -f1)
    sed -i "s|@SHA256_${platform%.tar.gz}@|$sum|" "$formula"
done
