#!/usr/bin/env bash
# msgspec 0.22.0 beside pydantic 2.14.4 and datetime (Python), and PostgreSQL 18.4: nanoseconds
# Expected: a time with more digits than microseconds is cut, and keeps its day
# Seen: msgspec and PostgreSQL round up to the next day, datetime and pydantic cut: two days in one service
. "$(dirname "$0")/lib.sh"

pip_get msgspec==0.22.0 pydantic==2.14.4
postgres_start
cat >when.py <<'PY'
from datetime import datetime
import msgspec, pydantic
text = "2026-11-30T23:59:59.9999999Z"
print(msgspec.convert(text, datetime).date(), pydantic.TypeAdapter(datetime).validate_python(text).date(),
      datetime.fromisoformat(text).date())
PY
same "$("$python" when.py; sql -c "SELECT timestamptz '2026-11-30T23:59:59.9999999Z' AT TIME ZONE 'UTC'")" \
    '2026-12-01 2026-11-30 2026-11-30
2026-12-01 00:00:00' "the event is of November to the code, and of December to the partition"
