#!/usr/bin/env bash
# pg 8.23.1 (node) on PostgreSQL 18.4, query_timeout
# Expected: a query that has timed out is cancelled
# Seen: only the promise is rejected; the statement goes on and commits
. "$(dirname "$0")/lib.sh"

npm_get pg@8.23.1
postgres_start
cat >late.mjs <<'JS'
import pg from 'pg';
const client = new pg.Client({ query_timeout: 100 }), other = new pg.Client();
await client.connect();
await other.connect();
await other.query('CREATE TABLE outbox (body text)');
await client.query("INSERT INTO outbox SELECT 'late' FROM pg_sleep(1)").catch((e) => console.log(e.message));
const stored = async () => (await other.query('SELECT count(*)::int AS n FROM outbox')).rows[0].n;
for (let i = 0; i < 100 && !(await stored()); i++) await new Promise((r) => setTimeout(r, 50));
console.log(await stored());
process.exit();
JS
same "$(node late.mjs)" 'Query read timeout
1' "the caller has an error, and retries; the event is stored twice"
