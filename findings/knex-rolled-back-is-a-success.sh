#!/usr/bin/env bash
# Knex 3.3.0 (npm) on PostgreSQL 18.4, await trx.rollback() in the handler of transaction()
# Expected: the promise of a transaction that was rolled back is rejected
# Seen: it is fulfilled, with undefined in place of the handler's value; with rollback(error) it is rejected
. "$(dirname "$0")/lib.sh"

npm_get knex@3.3.0 pg@8.23.1
postgres_start
cat >back.mjs <<'JS'
import Knex from 'knex';
const knex = Knex({ client: 'pg', connection: { host: '127.0.0.1', port: +process.env.PGPORT, user: 'postgres', database: 'postgres' } });
await knex.raw('CREATE TABLE outbox (id int)');
for (const reason of [[], [new Error('no stock')]])
  await knex.transaction(async (trx) => {
    await trx('outbox').insert({ id: 1 });
    await trx.rollback(...reason);
    return 'placed';
  }).then((v) => console.log('fulfilled', v), (e) => console.log('rejected', e.message));
console.log((await knex('outbox')).length);
process.exit();
JS
same "$(node back.mjs)" 'fulfilled undefined
rejected no stock
0' "the caller goes on as after a COMMIT, and there is no row"
