# The formula names the archive that was made, by its checksum, and Ruby reads it.
formula=$DIST/oncebox.rb
sum=$(sha256sum "$DIST/oncebox-$VERSION-x86_64-linux-gnu.tar.gz" | cut -d' ' -f1)
grep -A1 "oncebox-$VERSION-x86_64-linux-gnu.tar.gz\"" "$formula" | grep -q "sha256 \"$sum\""
if grep -q '@VERSION@\|@DOWNLOADS@' "$formula"; then exit 1; fi
# With archives of all platforms, as a release has them, nothing is left to fill in.
for platform in x86_64-linux-gnu aarch64-linux-gnu x86_64-darwin aarch64-darwin; do
    echo "$platform" >"oncebox-$VERSION-$platform.tar.gz"
done
"$ROOT/packaging/formula.sh" "$VERSION" "$PWD"
if grep -q '@' <(grep -v '^#' oncebox.rb); then exit 1; fi
# What it installs is in the archive.
for path in $(grep -oE '"(bin|man|completions)/[^"]+"' oncebox.rb | tr -d '"'); do
    tar -tzf "$DIST/oncebox-$VERSION-x86_64-linux-gnu.tar.gz" "oncebox-$VERSION/$path"
done
if command -v ruby >/dev/null; then ruby -c oncebox.rb; fi
