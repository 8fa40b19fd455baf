"""Attacks the uniqueness of the prototype in ring.sql: no key twice in two turns that follow each other.

python3 attack.py CONNINFO SECONDS. Eight sessions enqueue the same keys at random isolation levels,
with savepoints, rollbacks and prepared transactions, while another ends turns as fast as it can and
empties slots, and now and then is ended in the middle. Needs psycopg 3, and
max_prepared_transactions > 0.
"""

import collections, random, sys, threading, time, uuid
import psycopg

conninfo, seconds = sys.argv[1], float(sys.argv[2])
stop = time.monotonic() + seconds
taken = collections.defaultdict(list)  # key -> the turns in which it was committed
counts = collections.Counter()
guard = threading.Lock()
keys = [f"k-0-{n}" for n in range(6)]


def worker(number):
    rng = random.Random(number)
    connection = psycopg.connect(conninfo, autocommit=True)
    while time.monotonic() < stop:
        level = rng.choice(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
        key, won = rng.choice(keys), False
        try:
            connection.execute(f"BEGIN ISOLATION LEVEL {level}")
            if rng.random() < 0.5:
                connection.execute("SELECT count(*) FROM oncebox.slot")  # takes the snapshot
                time.sleep(rng.random() * 0.03)
            if rng.random() < 0.3:
                connection.execute("SAVEPOINT s")
                connection.execute("SELECT oncebox.enqueue(%s, 'a', 'p')", [rng.choice(keys)])
                connection.execute("ROLLBACK TO s")
            row = connection.execute("SELECT oncebox.enqueue(%s, 'a', 'p')", [key]).fetchone()
            if row[0] is not None:
                won = True
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.02)
            ending = rng.random()
            if ending < 0.2:
                connection.execute("ROLLBACK")
                continue
            with guard:
                turn = connection.execute("SELECT pg_sequence_last_value('oncebox.turn')").fetchone()[0] if won else None
            if ending < 0.4:
                name = str(uuid.uuid4())
                connection.execute(f"PREPARE TRANSACTION '{name}'")
                time.sleep(rng.random() * 0.02)
                connection.execute(f"COMMIT PREPARED '{name}'")
            else:
                connection.execute("COMMIT")
            counts[level] += 1
            if won:
                with guard:
                    taken[key].append(turn)
        except psycopg.errors.SerializationFailure:
            counts["40001"] += 1
            connection.execute("ROLLBACK")
        except psycopg.Error as error:
            counts[type(error).__name__] += 1
            connection.execute("ROLLBACK")


def turner():
    rng, connection, keep = random.Random(0), None, 0
    while time.monotonic() < stop:
        try:
            connection = connection or psycopg.connect(conninfo, autocommit=True)
            if rng.random() < 0.05:  # ended between setval and commit
                connection.execute("BEGIN")
                said = connection.execute("SELECT oncebox.end_turn()").fetchone()[0]
                connection.close()
                connection, said = None, "cut off: " + said
            else:
                said = connection.execute("SELECT oncebox.end_turn()").fetchone()[0]
                if said == "turned":
                    keep += 1
                    if keep % 3 == 0:  # new keys now and then
                        for n in range(len(keys)):
                            keys[n] = f"k-{keep}-{n}"
                connection.execute("SELECT oncebox.empty_next()")
            counts[said.split(" has")[0].rstrip("0123456789")] += 1
        except psycopg.Error as error:
            counts["turner " + type(error).__name__] += 1
            connection = None
        time.sleep(rng.random() * 0.02)


threads = [threading.Thread(target=worker, args=[n]) for n in range(1, 9)] + [threading.Thread(target=turner)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
twice = {key: turns for key, turns in taken.items() if any(b - a <= 1 for a, b in zip(sorted(turns), sorted(turns)[1:]))}
print(dict(counts))
print(f"{sum(map(len, taken.values()))} messages, {len(taken)} keys, twice in neighbouring turns: {len(twice)}", dict(list(twice.items())[:3]))
sys.exit(bool(twice))
