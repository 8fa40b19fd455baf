#!/usr/bin/env bash
# protobufjs 8.8.1 (npm), Type.fromObject
# Expected: a value that does not fit its field is an error
# Seen: it is changed to fit: 19.99 to 19, 3000000000 to a negative number, "false" to true
. "$(dirname "$0")/lib.sh"

npm_get protobufjs@8.8.1
cat >proto.mjs <<'JS'
import protobuf from 'protobufjs';
const E = protobuf.parse('syntax="proto3"; message E { int64 cents = 1; int32 count = 2; bool paid = 3; uint32 n = 4; }').root.lookupType('E');
for (const event of [{ cents: 19.99 }, { cents: '12abc' }, { count: 3000000000 }, { paid: 'false' }, { n: 4294967297 }])
  console.log(JSON.stringify(event), JSON.stringify(E.toObject(E.decode(E.encode(E.fromObject(event)).finish()), { longs: String })));
JS
same "$(node proto.mjs)" '{"cents":19.99} {"cents":"19"}
{"cents":"12abc"} {"cents":"12"}
{"count":3000000000} {"count":-1294967296}
{"paid":"false"} {"paid":true}
{"n":4294967297} {"n":1}' "five wrong values are encoded as five other values, without an error"
