#!/bin/sh
# Nothing is started: a relay needs its configuration first. A running one keeps the old program
# until you restart it, after `oncebox migrate`.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
