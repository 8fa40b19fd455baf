#!/usr/bin/env bash
# protobufjs 8.8.1 (npm), a schema with the field order_id
# Expected: an object with the field's own name, order_id, is encoded
# Seen: the field is called orderId in JavaScript; verify() finds nothing wrong, and the event is empty
. "$(dirname "$0")/lib.sh"

npm_get protobufjs@8.8.1
cat >proto.mjs <<'JS'
import protobuf from 'protobufjs';
const E = protobuf.parse('syntax="proto3"; message E { string order_id = 1; }').root.lookupType('E');
for (const event of [{ order_id: '7' }, { orderId: '7' }])
  console.log(E.verify(event), E.encode(E.create(event)).finish().length, E.encode(E.fromObject(event)).finish().length);
JS
same "$(node proto.mjs)" 'null 0 0
null 3 3' "an event with the schema's own names is valid, and zero bytes long"
