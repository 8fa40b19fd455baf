#!/usr/bin/env bash
# pydantic 2.14.4 (Python), a datetime field
# Expected: "20261128", a date in ISO 8601's basic form, is read as that date or refused
# Seen: it is a number of seconds: the 23rd of August 1970; and a number changes its unit at 20000000000
. "$(dirname "$0")/lib.sh"

pip_get pydantic==2.14.4
cat >when.py <<'PY'
from datetime import datetime
import pydantic
read = pydantic.TypeAdapter(datetime).validate_json
for text in ('"20261128"', "20000000000", "20000000001"):
    print(text, datetime.fromisoformat("20261128").year, read(text).date())
PY
same "$("$python" when.py)" '"20261128" 2026 1970-08-23
20000000000 2026 2603-10-11
20000000001 2026 1970-08-20' "the standard library reads 2026, pydantic 1970"
