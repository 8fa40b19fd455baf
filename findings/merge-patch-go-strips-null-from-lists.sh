#!/usr/bin/env bash
# evanphx/json-patch v5.9.11 (Go) beside json-merge-patch 1.0.2 (npm)
# Expected: RFC 7396: a list in a merge patch replaces the old one as it is
# Seen: Go removes members that are null from the objects in the list, and escapes < in strings that it does not touch
. "$(dirname "$0")/lib.sh"

npm_get json-merge-patch@1.0.2
cat >merge.mjs <<'JS'
import merge from 'json-merge-patch';
console.log(JSON.stringify(merge.apply({ note: '<b>' }, { lines: [{ sku: 'a', price: null }] })));
JS
seen=$(node merge.mjs
go_run github.com/evanphx/json-patch/v5@v5.9.11 <<'GO'
package main

import (
	"fmt"

	jsonpatch "github.com/evanphx/json-patch/v5"
)

func main() {
	merged, err := jsonpatch.MergePatch([]byte(`{"note":"<b>"}`), []byte(`{"lines":[{"sku":"a","price":null}]}`))
	fmt.Println(string(merged), err)
}
GO
)
same "$seen" '{"note":"<b>","lines":[{"sku":"a","price":null}]}
{"note":"\u003cb\u003e","lines":[{"sku":"a"}]} <nil>' "one patch gives two documents"
