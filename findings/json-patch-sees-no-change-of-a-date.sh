#!/usr/bin/env bash
# rfc6902 5.4.0 and fast-json-patch 3.1.1 (npm), documents with Date objects, as pg returns them
# Expected: the difference of two rows with another timestamp is a replacement of it
# Seen: rfc6902 finds no difference; fast-json-patch inserts the 24 letters of the date one by one
. "$(dirname "$0")/lib.sh"

npm_get rfc6902@5.4.0 fast-json-patch@3.1.1
cat >patch.mjs <<'JS'
import fast from 'fast-json-patch';
import { createPatch } from 'rfc6902';
const before = { paid_at: new Date(0) }, after = { paid_at: new Date(86400000) };
console.log(createPatch(before, after).length);
const patch = fast.compare(before, after);
console.log(patch.length, JSON.stringify(patch[0]));
JS
same "$(node patch.mjs)" '0
24 {"op":"add","path":"/paid_at/0","value":"1"}' "an audit event of a changed time is empty, or is letters"
