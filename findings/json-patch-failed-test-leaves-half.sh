#!/usr/bin/env bash
# fast-json-patch 3.1.1 and rfc6902 5.4.0 (npm) beside jsonpatch 1.48 (Python)
# Expected: RFC 6902, 5: a patch whose test fails changes nothing
# Seen: both npm libraries leave the operations before the test in the document; Python's leaves it alone
. "$(dirname "$0")/lib.sh"

npm_get fast-json-patch@3.1.1 rfc6902@5.4.0
pip_get jsonpatch==1.48
cat >patch.mjs <<'JS'
import fast from 'fast-json-patch';
import { applyPatch } from 'rfc6902';
const patch = [{ op: 'replace', path: '/state', value: 'paid' }, { op: 'test', path: '/version', value: 3 }];
const one = { state: 'open', version: 4 }, two = { state: 'open', version: 4 };
try { fast.applyPatch(one, patch, true); console.log('no error'); } catch (e) { console.log(e.name, one.state); }
console.log(applyPatch(two, patch).map((e) => e && e.name).join(), two.state);
JS
cat >patch.py <<'PY'
import jsonpatch
order = {"state": "open", "version": 4}
try:
    jsonpatch.apply_patch(order, [{"op": "replace", "path": "/state", "value": "paid"},
                                  {"op": "test", "path": "/version", "value": 3}])
except jsonpatch.JsonPatchTestFailed as error:
    print(type(error).__name__, order["state"])
PY
same "$(node patch.mjs; "$python" patch.py)" 'TEST_OPERATION_FAILED paid
,TestError paid
JsonPatchTestFailed open' "after a version check that failed, the order is paid in Node and open in Python"
