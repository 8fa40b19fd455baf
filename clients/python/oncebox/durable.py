"""The durable consumer on the server: found, created, brought up to date, or continued in strict order.

Strict order: JetStream delivers the messages of a dead process again only after `ack_wait`, and newer ones
meanwhile. So the process that takes over deletes the consumer and creates it again at its acknowledgement
floor: all that is unsettled comes in stream order, and the inbox answers copies. The same is done when a
delivery is missing. docs/languages.md and inbox/src/consumer/strict_order.rs say why that suffices.
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

from .inbox import Inbox
from .message import Message

log = logging.getLogger("oncebox")
STREAM_NOT_FOUND = 10059


@dataclass
class Place:
    """Where a strictly ordered consumer is."""

    # The consumer sequence of the last delivery.
    delivered: int = 0
    # Deliveries that the next message had under earlier consumers.
    first_deliveries: int = 0
    # Up to here in the stream, messages were delivered by earlier consumers.
    delivered_before: int = 0

    def deliveries(self, consumer_sequence: int, message: Message) -> Message | None:
        """The message with the deliveries of earlier consumers; None when a delivery before it is missing."""
        if consumer_sequence != self.delivered + 1:
            return None
        self.delivered = consumer_sequence
        earlier = max(self.first_deliveries, int(message.origin.sequence <= self.delivered_before))
        self.first_deliveries = 0
        return replace(message, deliveries=message.deliveries + earlier)


class Durable:
    """A durable consumer of a stream."""

    def __init__(
        self, jetstream: JetStreamContext, stream: str, name: str, *, filter_subject: str | None,
        ack_wait: float, max_ack_pending: int, start: datetime | Literal["now"] | None,
    ):  # fmt: skip
        self.jetstream, self.stream, self.name, self.start = jetstream, stream, name, start
        self.ack_wait, self.max_ack_pending = ack_wait, max_ack_pending
        # The server's limits of a pull.
        self.pull_max: int | None = None
        self.expires_max: float | None = None
        # Changes when it, or its stream, was deleted.
        self.created: object = None
        # JetStream would forget a message that has failed so often, before it is a dead letter.
        self.wanted = {
            "ack_policy": AckPolicy.EXPLICIT, "filter_subject": filter_subject, "filter_subjects": None,
            "max_deliver": -1, "headers_only": None, "backoff": None,
        }  # fmt: skip

    async def prepare(self) -> None:
        """Finds or creates the consumer, and changes what would lose or withhold messages."""
        found = await self.find()
        if found is None:
            await self._create(None)
            return
        self.created, config = found.created, found.config
        if config.deliver_subject:
            raise ValueError(f"consumer {self.name} of stream {self.stream} pushes; delete it, or choose another name")
        self.ack_wait = config.ack_wait or self.ack_wait
        differs = [name for name, value in self.wanted.items() if (getattr(config, name) or None) != value]
        if not differs or differs == ["max_deliver"] and config.max_deliver is None:
            return
        if "filter_subject" in differs or "filter_subjects" in differs:
            text = "consumer %s of stream %s had filter %s, and gets %s: if another service uses it, choose another durable name"
            log.warning(text, self.name, self.stream, config.filter_subject or config.filter_subjects, self.wanted["filter_subject"])
        log.info("consumer %s is changed: %s", self.name, ", ".join(differs))
        await self.jetstream.add_consumer(self.stream, config.evolve(**self.wanted))

    async def find(self) -> ConsumerInfo | None:
        """The consumer, if it is there; an error names the command that makes a missing stream."""
        try:
            subject = f"{self.jetstream._prefix}.CONSUMER.INFO.{self.stream}.{self.name}"
            told = await self.jetstream._api_request(subject, timeout=self.jetstream._timeout)
        except NotFoundError as error:
            if error.err_code == STREAM_NOT_FOUND:
                raise self._without_stream(error) from None
            return None
        self.pull_max, expires = told["config"].get("max_batch"), told["config"].get("max_expires")
        self.expires_max = expires and expires / 1e9
        return ConsumerInfo.from_response(told)

    async def _create(self, start: int | None) -> None:
        """Creates it: at this sequence, or, when it is new, where it was told to start."""
        config = ConsumerConfig(durable_name=self.name, max_ack_pending=self.max_ack_pending, ack_wait=self.ack_wait)
        if start is not None:
            config = config.evolve(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start)
        elif self.start == "now":
            config = config.evolve(deliver_policy=DeliverPolicy.NEW)
        elif self.start is not None:
            config = config.evolve(deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=self.start)
        try:
            made = await self.jetstream.add_consumer(self.stream, config.evolve(**self.wanted))
        except NotFoundError as error:
            raise self._without_stream(error) from None
        self.created = made.created
        if self.start == "now":
            # If it is deleted, it begins where this one did.
            self.start = made.created

    async def continued(self, inbox: Inbox, took_over: bool) -> Place:
        """In strict order: continues behind the messages that are settled, with all others in stream order."""
        # As nats-server writes it, since nats-py cuts the time.
        info = await self._stream_info()
        if info["config"].get("retention") == "interest":
            raise ValueError(
                f"stream {self.stream} has interest retention, which deletes messages when a consumer is created again;"
                " strict order needs limits or work-queue retention"
            )
        last, created = info["state"]["last_seq"], info["created"]
        found = await self.find()
        # A takeover that ended before anything was delivered does not know which messages were
        # delivered before it.
        untouched = found and not found.delivered.consumer_seq and found.config.opt_start_seq
        if found and not untouched and not found.num_ack_pending and found.delivered.stream_seq <= last:
            await self.prepare()
            return Place(delivered=found.delivered.consumer_seq)
        place = [self.stream, self.name, created]
        if found:
            following = next_sequence(found, last)
        else:
            (following,) = await inbox.database.ask("SELECT {schema}.consumer_place(%s, %s, %s)::text", place)
        if following is None:
            await self._create(None)
            return Place()
        statement = "SELECT {schema}.continue_consumer(%s, %s, %s, %s::text::bigint, %s::text::boolean)::text"
        (takeovers,) = await inbox.database.ask(statement, [*place, str(following), str(took_over).lower()])
        if found:
            await self.jetstream.delete_consumer(self.stream, self.name)
        # Settled messages are gone from a work queue, which allows no other start.
        is_queue = info["config"].get("retention") == "workqueue"
        await self._create(None if is_queue else int(following))
        log.info("consumer %s of stream %s goes on in order, from sequence %s", self.name, self.stream, following)
        return Place(0, int(takeovers), found.delivered.stream_seq if found and not untouched else last)

    async def _stream_info(self) -> dict[str, Any]:
        try:
            return await self.jetstream._api_request(f"{self.jetstream._prefix}.STREAM.INFO.{self.stream}", timeout=self.jetstream._timeout)
        except NotFoundError as error:
            raise self._without_stream(error) from None

    def _without_stream(self, error: NotFoundError) -> NotFoundError:
        error.description = (
            f"there is no stream {self.stream} for consumer {self.name}: a relay makes it,"
            f" `oncebox relay --stream '{self.stream}=SUBJECTS'`, and so does `nats stream add {self.stream}`"
        )
        return error


def next_sequence(found: ConsumerInfo, last_sequence: int) -> int:
    """Where a consumer goes on that is created again."""
    # nats-server 2.9 reports a floor of 0 until the first message after the start is settled.
    is_started = found.config.deliver_policy == DeliverPolicy.BY_START_SEQUENCE
    start = found.config.opt_start_seq if is_started else 1
    # Never beyond the stream's end: after a loss there, new messages get the lost ones' numbers.
    return min(max(found.ack_floor.stream_seq + 1, start or 1), last_sequence + 1)
