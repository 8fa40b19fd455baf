#!/usr/bin/env bash
# postgres 3.4.9 (npm, "postgres.js") on PostgreSQL 18.4: sql.reserve() while the only connection is in use
# Expected: who waits first is served first, also when that connection is closed in place of being released
# Seen: the one who waited is forgotten; a later caller gets the new connection at once
. "$(dirname "$0")/lib.sh"

npm_get postgres@3.4.9 pg@8.23.1
postgres_start
cat >reserve.mjs <<'JS'
import pg from 'pg';
import postgres from 'postgres';
const sql = postgres({ max: 1, onnotice() {} }), other = new pg.Client();
await other.connect();
const served = [];
const first = await sql.reserve();
const [{ pid }] = await first`SELECT pg_backend_pid() AS pid`;
sql.reserve().then(() => served.push('who waited'), () => served.push('refused'));
await other.query('SELECT pg_terminate_backend($1, 5000)', [pid]);
await new Promise((resolve) => setTimeout(resolve, 2000));
sql.reserve().then(() => served.push('who came later'), () => served.push('refused'));
await new Promise((resolve) => setTimeout(resolve, 2000));
console.log(served.join() || 'nobody');
process.exit();
JS
same "$(node reserve.mjs)" 'who came later' "a handler that waits for a connection is forgotten when the one in use is closed"
