# The workflows are valid, safe as far as zizmor sees, and call targets that exist; the forms for
# issues follow their schema.
cd "$ROOT"
"$GO/actionlint" -color .github/workflows/*.yml
PYTHONPATH=.dev/packaging .dev/packaging/bin/zizmor --offline --quiet .github/workflows
for target in $(grep -ohE 'make [a-z-]+' .github/workflows/*.yml | cut -d' ' -f2 | sort -u); do
    grep -q "^$target:" Makefile || { echo "there is no target $target" && exit 1; }
done
# Actions are pinned by their commit.
if grep -hE '^ *-? *uses:' .github/workflows/*.yml | grep -vE '@[0-9a-f]{40} # v[0-9.]+$'; then exit 1; fi
rust=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
if grep -hE 'container:' .github/workflows/*.yml | grep -v "library/rust:$rust-bookworm$"; then exit 1; fi
# Nothing is published before everything has passed.
python3 - <<'PYTHON'
import re
text = open(".github/workflows/release.yml").read()
jobs = re.findall(r"^  ([a-z]+):$", text.split("\njobs:\n", 1)[1], re.M)
needed = re.search(r"  publish:\n    needs: \[(.*)\]", text).group(1).split(", ")
assert sorted(needed + ["publish"]) == sorted(jobs), (needed, jobs)
PYTHON
PYTHONPATH=.dev/linters python3 .dev/linters/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
