#!/usr/bin/env bash
# sqlmodel 0.0.50 (Python), a class with table=True
# Expected: it is a pydantic model: wrong types, broken limits and unknown fields are errors
# Seen: a class with table=True validates nothing: text in an int, a key below min_length and a misspelt field pass
. "$(dirname "$0")/lib.sh"

pip_get sqlmodel==0.0.50
cat >model.py <<'PY'
from sqlmodel import Field, SQLModel
class Base(SQLModel):
    key: str = Field(min_length=3)
    cents: int = 0
class Event(Base, table=True):
    id: int | None = Field(default=None, primary_key=True)
for cls in (Base, Event):
    try:
        event = cls(key="", cents="abc")
        print(cls.__name__, repr(event.key), event.cents)
    except ValueError as error:
        print(cls.__name__, "refused", error.error_count())
print(Event(key="key", cent=1999).cents)
PY
same "$("$python" model.py)" "Base refused 2
Event '' abc
0" "an event of the table's own class is checked by nothing"
