"""The service that the tests of docs/testing.md are about."""

import oncebox


async def place(connection, order, cents):
    await oncebox.enqueue(connection, f"order-{order}:charge", "orders.placed", {"order": order, "cents": cents})


async def charge(cx, order):
    await cx.connection.execute("INSERT INTO charge VALUES (%s, %s)", [order["order"], order["cents"]])
