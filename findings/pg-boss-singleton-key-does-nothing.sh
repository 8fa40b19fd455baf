#!/usr/bin/env bash
# pg-boss 10.4.2 (npm) on PostgreSQL 18.4, send() with a singletonKey to a queue as createQueue() makes it
# Expected: the second job with the same key is refused while the first waits
# Seen: both are stored: the key counts only in a queue with a policy
. "$(dirname "$0")/lib.sh"

npm_get pg-boss@10.4.2
postgres_start
cat >boss.mjs <<'JS'
import PgBoss from 'pg-boss';
const boss = new PgBoss({ host: '127.0.0.1', port: +process.env.PGPORT, user: 'postgres', database: 'postgres' });
await boss.start();
await boss.createQueue('plain');
await boss.createQueue('short', { name: 'short', policy: 'short' });
for (const queue of ['plain', 'short']) {
  const ids = [];
  for (let i = 0; i < 2; i++) ids.push(await boss.send(queue, {}, { singletonKey: 'order-7' }));
  console.log(queue, ids.filter(Boolean).length);
}
process.exit();
JS
same "$(node boss.mjs)" 'plain 2
short 1' "the key that shall make a job unique is stored, and compared with nothing"
