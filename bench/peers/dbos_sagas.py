"""Workflows of three steps in DBOS Transact, each step an INSERT in a transaction of its own: how
many a second when all are started at once by eight threads, and the median time of one that is
alone, in milliseconds. DATABASE_URL is a PostgreSQL in which it makes databases of its own. Usage:
dbos_sagas.py WORKFLOWS SECONDS"""

import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
from dbos import DBOS
from psycopg_pool import ConnectionPool

STARTERS = 8
base = os.environ["DATABASE_URL"].rsplit("/", 1)[0]
names = ["peer_dbos", "peer_dbos_system"]


def fresh_databases():
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as admin:
        for name in names:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            admin.execute(f"CREATE DATABASE {name}")


fresh_databases()
pool = ConnectionPool(f"{base}/{names[0]}", min_size=16, max_size=16, open=True)
with pool.connection() as connection:
    connection.execute("CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY, customer bigint, cents bigint)")
DBOS(config={"name": "peer", "system_database_url": f"{base}/{names[1]}", "run_admin_server": False, "log_level": "WARNING"})


@DBOS.step()
def effect(customer, cents):
    with pool.connection() as connection:
        connection.execute("INSERT INTO effect (customer, cents) VALUES (%s, %s)", (customer, cents))


@DBOS.workflow()
def order(customer, cents, note):
    for _ in range(3):
        effect(customer, cents)


DBOS.launch()


def lead(count):
    with ThreadPoolExecutor(STARTERS) as starters:
        handles = list(starters.map(lambda n: DBOS.start_workflow(order, n, 100, "x" * 100), range(count)))
    for handle in handles:
        handle.get_result()


lead(20)
begun = time.monotonic()
lead(int(sys.argv[1]))
rate = int(sys.argv[1]) / (time.monotonic() - begun)
alone, until = [], time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    begun = time.monotonic()
    DBOS.start_workflow(order, 1, 100, "x" * 100).get_result()
    alone.append(1000 * (time.monotonic() - begun))
print(f"{rate:.0f} {statistics.median(alone):.1f}")
DBOS.destroy()
