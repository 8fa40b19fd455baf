#!/usr/bin/env bash
# pydantic 2.14.4 beside msgspec 0.22.0 (Python), a field of type Decimal, a JSON number
# Expected: a Decimal field holds the digits of the JSON text
# Seen: pydantic goes through a float: 12345678901234567.89 becomes 12345678901234568; msgspec is exact
. "$(dirname "$0")/lib.sh"

pip_get pydantic==2.14.4 msgspec==0.22.0
cat >amount.py <<'PY'
from decimal import Decimal
import msgspec, pydantic
class Model(pydantic.BaseModel):
    amount: Decimal
class Struct(msgspec.Struct):
    amount: Decimal
for text in ('{"amount":1.10}', '{"amount":12345678901234567.89}'):
    print(Model.model_validate_json(text).amount, msgspec.json.decode(text, type=Struct).amount)
PY
same "$("$python" amount.py)" '1.1 1.10
12345678901234568 12345678901234567.89' "model_validate_json loses the cents of a Decimal"
