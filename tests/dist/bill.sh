# The bill of materials follows its schema and names the crates of the lock file that are linked; the
# licences have the text of each of them.
bill=$DIST/oncebox-$VERSION-x86_64-linux-gnu.cdx.json
schemas=$ROOT/.dev/packaging/cyclonedx/schema/_res
PYTHONPATH=$ROOT/.dev/linters python3 "$ROOT/.dev/linters/bin/check-jsonschema" \
    --base-uri "file://$schemas/" --schemafile "$schemas/bom-1.6.SNAPSHOT.schema.json" "$bill"
python3 - "$bill" "$DIST/THIRD-PARTY.txt" <<'PYTHON'
import json, sys
bill, licences = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
components = {component["name"]: component for component in bill["components"]}
for name in ["oncebox-relay", "oncebox-operator", "tokio", "async-nats", "tokio-postgres", "rustls", "ring"]:
    assert name in components, f"{name} is missing"
# What only tests, other crates of the workspace or the compiler use is not in the program.
for name in ["proptest", "sqlx", "diesel", "syn", "serde_derive", "cc"]:
    assert name not in components, f"{name} is not linked"
assert len(components) > 150, len(components)
for name, component in components.items():
    assert component["licenses"][0]["expression"] != "NOASSERTION", name
    assert name.startswith("oncebox-") or f"  {name} {component['version']} (" in licences, name
    assert name.startswith("oncebox-") or component["hashes"], name
assert "Permission is hereby granted, free of charge" in licences
PYTHON
