#!/usr/bin/env bash
# rrule 2.8.1 (npm), rrule-go v1.8.2 and python-dateutil 2.9.0.post0, FREQ=HOURLY in Europe/Berlin
# Expected: an hourly rule fires every hour, also in the night when the clocks change
# Seen: each library leaves out one hour, and each another one
. "$(dirname "$0")/lib.sh"

npm_get rrule@2.8.1
pip_get python-dateutil==2.9.0.post0
cat >rule.mjs <<'JS'
import rrule from 'rrule';
const rule = rrule.rrulestr('DTSTART;TZID=Europe/Berlin:20261024T230000\nRRULE:FREQ=HOURLY;COUNT=6');
console.log(rule.all().map((t) => t.toISOString().slice(11, 13)).join(' '));
JS
cat >rule.py <<'PY'
from datetime import datetime, timezone
from dateutil import tz
from dateutil.rrule import HOURLY, rrule
start = datetime(2026, 10, 24, 23, tzinfo=tz.gettz("Europe/Berlin"))
print(*(t.astimezone(timezone.utc).strftime("%H") for t in rrule(HOURLY, count=6, dtstart=start)))
PY
seen=$(TZ=UTC node rule.mjs; "$python" rule.py
go_run github.com/teambition/rrule-go@v1.8.2 <<'GO'
package main

import (
	"fmt"

	"github.com/teambition/rrule-go"
)

func main() {
	set, err := rrule.StrToRRuleSet("DTSTART;TZID=Europe/Berlin:20261024T230000\nRRULE:FREQ=HOURLY;COUNT=6")
	if err != nil {
		panic(err)
	}
	for _, t := range set.All() {
		fmt.Print(t.UTC().Format("15 "))
	}
}
GO
)
same "$seen" '21 22 00 01 02 03
21 22 23 00 02 03
21 22 23 01 02 03 ' "in UTC, one hour is missing, and each library misses another"
