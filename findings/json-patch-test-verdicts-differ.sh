#!/usr/bin/env bash
# evanphx/json-patch v5.9.11 (Go) beside fast-json-patch 3.1.1 (npm) and jsonpatch 1.48 (Python)
# Expected: RFC 6902, 4.6: 1 equals 1.0, and a member that is absent does not equal null
# Seen: Go says that 1 is not 1.0, and that the absent member is null; the two others follow the RFC
. "$(dirname "$0")/lib.sh"

npm_get fast-json-patch@3.1.1
pip_get jsonpatch==1.48
cat >tests.json <<'JSON'
[[{"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}]], [{}, [{"op": "test", "path": "/a", "value": null}]]]
JSON
cat >patch.mjs <<'JS'
import fast from 'fast-json-patch';
import { readFileSync } from 'node:fs';
for (const [doc, patch] of JSON.parse(readFileSync('tests.json')))
  try { fast.applyPatch(doc, patch, true); console.log('node passed'); } catch { console.log('node failed'); }
JS
cat >patch.py <<'PY'
import json, jsonpatch
for doc, patch in json.load(open("tests.json")):
    try:
        jsonpatch.apply_patch(doc, patch)
        print("python passed")
    except jsonpatch.JsonPatchTestFailed:
        print("python failed")
PY
seen=$(node patch.mjs; "$python" patch.py
go_run github.com/evanphx/json-patch/v5@v5.9.11 <<'GO'
package main

import (
	"encoding/json"
	"fmt"
	"os"

	jsonpatch "github.com/evanphx/json-patch/v5"
)

func main() {
	var cases [][2]json.RawMessage
	text, _ := os.ReadFile("../tests.json")
	json.Unmarshal(text, &cases)
	for _, c := range cases {
		patch, _ := jsonpatch.DecodePatch(c[1])
		if _, err := patch.Apply(c[0]); err != nil {
			fmt.Println("go failed")
		} else {
			fmt.Println("go passed")
		}
	}
}
GO
)
same "$seen" 'node passed
node failed
python passed
python failed
go failed
go passed' "one guard, the opposite verdict in Go, in both directions"
