"""The cashier of the examples in Python, for the same gateway, under the same keys: tests/it/leased/gateway.rs."""

import asyncio
import json
import logging
import os

import nats
import oncebox
from psycopg_pool import AsyncConnectionPool

HOST, _, PORT = os.environ["GATEWAY"].partition(":")


async def send(method: str, path: str, body: dict | None = None, key: str = "") -> tuple[int, bytes]:
    """One connection for each request: nothing is sent twice behind our back."""
    try:
        reader, writer = await asyncio.open_connection(HOST, int(PORT))
    except OSError as error:
        raise oncebox.NotSent("the gateway is not there") from error
    try:
        text = json.dumps(body).encode() if body else b""
        head = f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\nidempotency-key: {key}\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + text)
        answer, _, content = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(answer.split()[1]), content


def pay(page: str, cents: int):
    async def call(key: str) -> dict:
        status, answer = await send("POST", page, {"reference": key, "cents": cents}, key)
        if status == 402:
            raise oncebox.Rejected("card declined")
        if status != 200:
            raise RuntimeError(f"the gateway answers {status}")
        # An answer that was cut off has no JSON.
        return json.loads(answer)

    return call


async def find_payout(key: str):
    status, answer = await send("GET", f"/payouts/{key}")
    if status == 404:
        return oncebox.Absent
    return oncebox.Happened(json.loads(answer)) if status == 200 else oncebox.Unknown


async def settle(cx: oncebox.LeasedContext, order: dict):
    number, cents = order["order"], order["cents"]
    try:
        charged = await cx.effect("charge", pay("/charges", cents), provider_idempotent=True, timeout=1.0)
    except oncebox.Rejected:
        return oncebox.Reject({"order": number, "numbers": None})
    paid_out = await cx.effect("pay-out", pay("/payouts", cents), reconcile=find_payout, timeout=1.0, settles_within=4.0)
    return {"order": number, "numbers": [charged["number"], paid_out["number"]]}


async def book(cx: oncebox.Context, settled):
    if not isinstance(settled, oncebox.Reject):
        sql = "INSERT INTO settlement (order_id, charge, payout) VALUES (%s, %s, %s)"
        await cx.connection.execute(sql, [settled["order"], *settled["numbers"]])


async def main():
    logging.basicConfig(level=logging.INFO)
    client, lease = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1), float(os.environ["LEASE_SECONDS"])
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], max_size=9) as pool:
        # Each process that dies, and each answer that is lost, costs an attempt.
        inbox = oncebox.Inbox(pool, scope="cashier-service:settle", lease=lease, attempts_max=100, backoff=(0.2, 5.0))
        subject = f"{os.environ['SUBJECT_PREFIX']}orders.placed"
        consumer = oncebox.Consumer(
            client.jetstream(), os.environ["STREAM"], "cashier", filter_subject=subject, concurrency=8, ack_wait=max(lease, 1.0)
        )
        await consumer.run(inbox, oncebox.LeasedHandler(settle, finish=book))
    await client.drain()


asyncio.run(main())
