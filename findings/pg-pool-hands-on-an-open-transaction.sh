#!/usr/bin/env bash
# pg 8.23.1 (node) on PostgreSQL 18.4: client.release() without COMMIT, as after an early return
# Expected: the pool ends the transaction, or drops the connection
# Seen: the next borrower is inside it: its own COMMIT commits the other's rows
. "$(dirname "$0")/lib.sh"

npm_get pg@8.23.1
postgres_start
cat >pool.mjs <<'JS'
import pg from 'pg';
const pool = new pg.Pool({ max: 1 }), other = new pg.Pool({ max: 1 });
await pool.query('CREATE TABLE outbox (body text)');
const first = await pool.connect();
await first.query('BEGIN');
await first.query("INSERT INTO outbox VALUES ('abandoned')");
first.release();
const second = await pool.connect();
await second.query('BEGIN');
await second.query("INSERT INTO outbox VALUES ('mine')");
await second.query('COMMIT');
second.release();
console.log((await other.query('SELECT body FROM outbox')).rows.map((r) => r.body).join());
await pool.end();
await other.end();
JS
same "$(node pool.mjs)" 'abandoned,mine' "an event that its request gave up is committed by another request"
