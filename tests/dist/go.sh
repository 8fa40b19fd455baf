# The Go modules, taken from their zips, build a program of another module; the client needs no validator.
if [ -d "$ROOT/.dev/toolchains/go/go/bin" ]; then PATH=$ROOT/.dev/toolchains/go/go/bin:$PATH; fi
python3 -m zipfile -e "$DIST/go/oncebox-go-v$VERSION.zip" modules
mv "modules/oncebox@v$VERSION" oncebox
[ -s oncebox/LICENSE-MIT ]
cmp oncebox/go.mod "$DIST/go/oncebox-go-v$VERSION.mod"
grep -q "\"Version\": \"v$VERSION\"" "$DIST/go/oncebox-go-v$VERSION.info"
mkdir shop && cd shop
cp ../oncebox/go.mod ../oncebox/go.sum .
go mod edit -module=shop -require="oncebox@v$VERSION" -replace=oncebox=../oncebox
printf 'package main\n\nimport "oncebox"\n\nvar _ oncebox.Message\n\nfunc main() {}\n' >main.go
go vet ./...
(cd ../oncebox && go vet ./... && [ ! -e contracts ] && ! grep -q jsonschema go.mod)
cd ..
python3 -m zipfile -e "$DIST/go/oncebox-go-contracts-v$VERSION.zip" modules
mv "modules/oncebox/contracts@v$VERSION" contracts
(cd contracts && go vet ./...)
