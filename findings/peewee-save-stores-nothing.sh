#!/usr/bin/env bash
# peewee 4.5.3 on PostgreSQL 18.4, a model whose primary key is a UUID of the caller
# Expected: save() of a new object inserts it
# Seen: save() sends an UPDATE, as the key is set: no row, no error, and 0 is returned
. "$(dirname "$0")/lib.sh"

pip_get peewee==4.5.3 'psycopg[binary]==3.3.9'
postgres_start
cat >save.py <<'PY'
import os, uuid
from peewee import Model, PostgresqlDatabase, TextField, UUIDField
db = PostgresqlDatabase("postgres", user="postgres", host="127.0.0.1", port=int(os.environ["PGPORT"]))
class Event(Model):
    id = UUIDField(primary_key=True)
    body = TextField()
    class Meta:
        database = db
db.create_tables([Event])
print(Event(id=uuid.uuid4(), body="placed").save(), Event.select().count())
Event.create(id=uuid.uuid4(), body="placed")
print(Event.select().count())
PY
same "$("$python" save.py)" '0 0
1' "an event with its own id is saved without an error, and is in no table"
