#!/bin/sh
# Stops the relay when the package goes ("remove" of Debian, 0 of RPM), not when it is upgraded.
set -e
case ${1:-} in
remove | 0) if [ -d /run/systemd/system ]; then systemctl disable --now oncebox-relay.service || true; fi ;;
esac
