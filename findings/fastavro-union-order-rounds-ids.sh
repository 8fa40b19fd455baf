#!/usr/bin/env bash
# fastavro 1.13.1 (Python), a union with double before long
# Expected: an integer is written with the branch that is an integer
# Seen: the first branch that accepts it wins: as a double, 9007199254740993 becomes 9007199254740992.0
. "$(dirname "$0")/lib.sh"

pip_get fastavro==1.13.1
cat >id.py <<'PY'
import io
import fastavro
for union in (["null", "double", "long"], ["null", "long", "double"]):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, union, 9007199254740993)
    out.seek(0)
    print(fastavro.schemaless_reader(out, union, None))
PY
same "$("$python" id.py)" '9007199254740992.0
9007199254740993' "the order of a union decides whether an id survives"
