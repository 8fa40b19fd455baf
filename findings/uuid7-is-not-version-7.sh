#!/usr/bin/env bash
# uuid7 0.1.0 (PyPI) beside PostgreSQL 18.4
# Expected: the time of the UUIDs that it makes is now, as RFC 9562 says
# Seen: it lays the time out as an old draft did; PostgreSQL reads the year 2203
. "$(dirname "$0")/lib.sh"

pip_get uuid7==0.1.0
postgres_start
id=$("$python" -c 'import uuid_extensions; print(uuid_extensions.uuid7())')
seen=$(sql -c "SELECT uuid_extract_version('$id'), abs(extract(epoch FROM now() - uuid_extract_timestamp('$id'))) > 86400 * 365")
same "$seen" '7|t' "it says version 7, and its time is years away: it does not sort among others"
