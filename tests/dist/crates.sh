# cargo takes the crates in order for a registry; each has its licences, a README and settings for
# docs.rs. `make lint` compiles each as packed (tests/packages.sh).
cd "$ROOT"
cargo publish --dry-run --no-verify --allow-dirty --workspace --quiet --target-dir "${DIST%/dist}/dist-publish" 2>log.txt || {
    cat log.txt; rm -f log.txt; exit 1
}
rm -rf log.txt "${DIST%/dist}/dist-publish"
crates=0
for crate in "$DIST"/crates/*.crate; do
    crates=$((crates + 1))
    files=$(tar -tzf "$crate")
    for file in README.md LICENSE-MIT LICENSE-APACHE Cargo.toml; do
        grep -q "/$file$" <<<"$files" || { echo "$crate has no $file" && exit 1; }
    done
    manifest=$(tar -xzOf "$crate" "$(grep '^[^/]*/Cargo.toml$' <<<"$files")")
    for word in 'description = ' 'license = "MIT OR Apache-2.0"' 'readme = ' 'keywords = ' 'categories = ' 'package.metadata.docs.rs'; do
        grep -qF "$word" <<<"$manifest" || { echo "$crate has no $word" && exit 1; }
    done
done
[ "$crates" -ge 14 ]
