#!/usr/bin/env bash
# peewee 4.5.3 on PostgreSQL 18.4, rollback() inside a with block of atomic()
# Expected: the writes after rollback() are refused, or belong to nothing that commits
# Seen: rollback() begins a new transaction, and the end of the block commits it: the event without its order
. "$(dirname "$0")/lib.sh"

pip_get peewee==4.5.3 'psycopg[binary]==3.3.9'
postgres_start
cat >save.py <<'PY'
import os
from peewee import Model, PostgresqlDatabase, TextField
db = PostgresqlDatabase("postgres", user="postgres", host="127.0.0.1", port=int(os.environ["PGPORT"]))
class Row(Model):
    body = TextField()
    class Meta:
        database = db
db.create_tables([Row])
with db.atomic() as transaction:
    Row.create(body="order")
    transaction.rollback()
    Row.create(body="event")
print([row.body for row in Row.select()])
PY
same "$("$python" save.py)" "['event']" "the order is rolled back, and its event is committed"
