#!/usr/bin/env bash
# orjson 3.13.0 beside json, msgspec 0.22.0 and pydantic 2.14.4 (Python), an integer of 23 digits
# Expected: Python's integers have no limit: the id is read exactly, or refused
# Seen: orjson returns a float with other digits; the others return the integer
. "$(dirname "$0")/lib.sh"

pip_get orjson==3.13.0 msgspec==0.22.0 pydantic==2.14.4
cat >id.py <<'PY'
import json, msgspec, orjson, pydantic
text = "12345678901234567890123"
for read in (orjson.loads, json.loads, msgspec.json.decode, pydantic.TypeAdapter(object).validate_json):
    print(type(read(text)).__name__, int(read(text)) == int(text))
PY
same "$("$python" id.py)" 'float False
int True
int True
int True' "the fastest parser reads another id, without an error"
