# The archive has the program, small, stripped and for glibc 2.17, and all that belongs to it; the
# checksums are those of the files.
(cd "$DIST" && sha256sum --quiet --check SHA256SUMS)
[ "$(cd "$DIST" && find . -type f ! -name SHA256SUMS | wc -l)" = "$(wc -l <"$DIST/SHA256SUMS")" ]

tar -xzf "$DIST/oncebox-$VERSION-x86_64-linux-gnu.tar.gz"
cd "oncebox-$VERSION"
[ "$(env -i bin/oncebox --version)" = "oncebox $VERSION" ]
# The orchestrator of sagas, with the consumer of its answers, is 2 MiB of it, and contracts with
# their validator of JSON Schema are 4 MiB.
[ "$(stat --format=%s bin/oncebox)" -le $((23 * 1024 * 1024)) ]
if readelf --section-headers bin/oncebox | grep '\.symtab\|\.debug_info'; then
    echo "the program is not stripped" && exit 1
fi
newest=$(readelf --dyn-syms bin/oncebox | grep -oE 'GLIBC_[0-9.]+' | sort --unique --version-sort | tail -1)
echo "the newest symbols are of $newest"
printf '%s\n' "$newest" GLIBC_2.17 | sort --version-sort --check=quiet
for library in $(readelf --dynamic bin/oncebox | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    case $library in
    libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | librt.so.1 | libutil.so.1 | ld-linux-x86-64.so.2) ;;
    *) echo "the program needs $library" && exit 1 ;;
    esac
done
grep -q 'oncebox migrate' man/oncebox.1
for shell in bash zsh fish; do grep -q doctor "completions/oncebox.$shell"; done
bash -n completions/oncebox.bash
grep -q '^ExecStart=/usr/bin/oncebox relay$' oncebox-relay.service
[ "$(head -1 oncebox-relay.service)" = "[Unit]" ]
for file in LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md; do cmp -s "$file" "$ROOT/$file" || [ "$file" = README.md ]; done
