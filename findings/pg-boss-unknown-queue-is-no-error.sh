#!/usr/bin/env bash
# pg-boss 10.4.2 (npm) on PostgreSQL 18.4, send() to a queue that does not exist
# Expected: an error, or a new queue
# Seen: null, which is also the answer for a job that was there already; nothing is stored
. "$(dirname "$0")/lib.sh"

npm_get pg-boss@10.4.2
postgres_start
cat >boss.mjs <<'JS'
import PgBoss from 'pg-boss';
const boss = new PgBoss({ host: '127.0.0.1', port: +process.env.PGPORT, user: 'postgres', database: 'postgres' });
await boss.start();
await boss.createQueue('charges');
const id = '0194f3a0-0000-7000-8000-000000000001';
await boss.send('charges', {}, { id });
console.log('duplicate', await boss.send('charges', {}, { id }));
console.log('misspelt', await boss.send('charge', {}));
process.exit();
JS
same "$(node boss.mjs)" 'duplicate null
misspelt null' "a misspelt queue loses the job, with the answer of a duplicate"
