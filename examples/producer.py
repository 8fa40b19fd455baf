"""A producer in Python: an order and the message that asks for its payment, in one transaction.

    DATABASE_URL=postgres://... python producer.py REQUEST_KEY CUSTOMER CENTS

The same steps as src/order.rs and producer.sql: nobody can tell from a message which of the three sent it.
Needs psycopg, see requirements.txt, and the tables of src/order/schema.sql.
"""

import json
import os
import sys

import psycopg

# The customer's row first: its lock decides the order which the ordering key keeps.
LOCK_CUSTOMER = "INSERT INTO customer (id) VALUES (%s) ON CONFLICT (id) DO UPDATE SET id = excluded.id"

# A retried request inserts nothing and finds its order below.
INSERT_ORDER = """
    INSERT INTO orders (request_key, customer, number, cents)
    SELECT %(request_key)s, %(customer)s, coalesce(max(number), 0) + 1, %(cents)s
    FROM orders
    WHERE customer = %(customer)s
    ON CONFLICT (request_key) DO NOTHING
"""
FIND_ORDER = "SELECT id, number FROM orders WHERE request_key = %s"

# Returns NULL when this very message is enqueued already; one key for two different messages is an error.
ENQUEUE = """
    SELECT oncebox.enqueue(
        key          => oncebox.step_key(oncebox.root_key(%(request_key)s), 'process-payment'),
        subject      => 'orders.placed',
        payload      => %(payload)s,
        ordering_key => %(ordering_key)s)
"""


def place_order(connection, request_key, customer, cents):
    """Places the order and enqueues its message; both are committed, or neither."""
    with connection.transaction():
        connection.execute(LOCK_CUSTOMER, [customer])
        connection.execute(INSERT_ORDER, {"request_key": request_key, "customer": customer, "cents": cents})
        order, number = connection.execute(FIND_ORDER, [request_key]).fetchone()
        # A retry must send the same bytes: fixed separators, fixed order of the fields.
        placed = {"order": order, "customer": customer, "number": number, "cents": cents}
        payload = json.dumps(placed, separators=(",", ":")).encode()
        message = {"request_key": request_key, "payload": payload, "ordering_key": f"customer:{customer}"}
        (message_id,) = connection.execute(ENQUEUE, message).fetchone()
        return order, message_id


def main():
    request_key, customer, cents = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        order, message_id = place_order(connection, request_key, customer, cents)
    print(f"order {order}, message {message_id or 'enqueued already'}")


if __name__ == "__main__":
    try:
        main()
    except (psycopg.errors.DatabaseError, IndexError, ValueError, KeyError) as error:
        sys.exit(f"producer.py: {error}")
