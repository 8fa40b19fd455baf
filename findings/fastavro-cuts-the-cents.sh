#!/usr/bin/env bash
# fastavro 1.13.1 beside avro 1.12.2 (Python), a field of type long
# Expected: 19.99 for a long is an error
# Seen: fastavro writes 19; avro refuses
. "$(dirname "$0")/lib.sh"

pip_get fastavro==1.13.1 avro==1.12.2
cat >amount.py <<'PY'
import io, json
import avro.io, avro.schema, fastavro
schema = {"type": "record", "name": "Paid", "fields": [{"name": "cents", "type": "long"}]}
out = io.BytesIO()
fastavro.schemaless_writer(out, schema, {"cents": 19.99})
out.seek(0)
print(fastavro.schemaless_reader(out, schema, None))
try:
    avro.io.DatumWriter(avro.schema.parse(json.dumps(schema))).write(
        {"cents": 19.99}, avro.io.BinaryEncoder(io.BytesIO()))
    print("written")
except avro.errors.AvroTypeException:
    print("refused")
PY
same "$("$python" amount.py)" "{'cents': 19}
refused" "a fraction is cut off, without an error"
