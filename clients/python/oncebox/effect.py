"""An effect outside the database: called once per key, or as often as its provider can bear.

           ┌─ done, rejected ─▶ the remembered result
begin ─────┼─ begun ──────────────────────────────▶ call ─┬─ result ─▶ remember it
 (commits) │                    absent, for long ──▶  ▲   ├─ Rejected ─▶ remember that
           └─ open ─▶ reconcile ────┬─────────────────┘   ├─ NotSent ─▶ forget it: the next run calls
               (or call again, of   ├─ Happened ─▶ remember it
                an idempotent       └─ Unknown ─▶ nothing: the next run reconciles ◀─ anything else
                provider)

A call that failed for sure says nothing about an earlier one of unknown outcome: unless that was
reconciled, the record stays, and the effect is unknown.
"""

import asyncio
import inspect
import json
from dataclasses import dataclass
from typing import Any, Awaitable, Callable

from .causes import first_line
from .keys import step_key
from .reply import REPLY_MAX
from .sql import Typed

# How long a request may be on its way after its sender has given it up.
ON_ITS_WAY = 30.0


class Rejected(Exception):
    """Raised by a call: the provider said no for good, which is remembered. `cx.effect` raises it, too; a handler
    that passes it on gives the message up."""


class NotSent(Exception):
    """Raised by a call that certainly had no effect, and may be made again. `cx.effect` raises it, too."""


class OutcomeUnknown(Exception):
    """Raised by `cx.effect`: the effect may have happened, and the next run finds out. Pass it on."""


class Settling(OutcomeUnknown):
    """An earlier call may still arrive for so many seconds: a wait, and no attempt."""

    def __init__(self, text: str, seconds: float):
        super().__init__(text)
        self.seconds = seconds


class LeaseLost(Exception):
    """Raised by `cx.effect`: another process may work on the message. Nothing may be called or written any more."""


@dataclass(frozen=True)
class Happened:
    """Returned by `reconcile`: the effect happened, with this result."""

    result: Any = None


class _Answer:
    def __init__(self, name: str):
        self._name = name

    def __repr__(self) -> str:
        return self._name


# Returned by `reconcile`: the provider knows nothing of the effect, or cannot tell yet.
Absent, Unknown = _Answer("Absent"), _Answer("Unknown")
Call = Callable[[str], Awaitable[Any]]


class Ledger(dict[str, str]):
    """How the effects of a run stand: idle, busy, busy-open (it may have happened), open or settled."""

    def take(self, step: str) -> bool:
        """Takes an effect in hand: whether it may have happened in this run. A second use would get the first's result."""
        if self.get(step, "idle") not in ("idle", "open"):
            how = "was done" if self[step] == "settled" else "is under way"
            raise ValueError(f'effect "{step}" {how} already; each effect of a run needs a name of its own')
        was_open = self.get(step) == "open"
        self[step] = "busy-open" if was_open else "busy"
        return was_open

    def drop(self, step: str) -> None:
        self[step] = {"busy": "idle", "busy-open": "open"}.get(self[step], self[step])

    def open(self) -> str:
        return ", ".join(f'"{step}"' for step, how in sorted(self.items()) if how in ("open", "busy-open"))


async def run_effect(
    lease: Any, step: str, call: Call, reconcile: Call | None, provider_idempotent: bool, timeout: float, settles_within: float | None
) -> Any:
    if (reconcile is None) != provider_idempotent:
        text = "say either how to `reconcile` it, or that its provider is idempotent (provider_idempotent=True)"
        raise ValueError(f'effect "{step}": {text}')
    key = step_key(lease.claim.key, step)
    was_open = lease.ledger.take(step)
    effect = Effect(lease, step, key, timeout, timeout + ON_ITS_WAY if settles_within is None else settles_within)
    try:
        return await effect.run(call, reconcile, was_open)
    finally:
        lease.ledger.drop(step)


class Effect:
    """An effect in the hands of its run."""

    def __init__(self, lease: Any, step: str, key: str, timeout: float, settles_within: float):
        self.lease, self.step, self.key, self.timeout, self.settles_within = lease, step, key, timeout, settles_within

    async def run(self, call: Call, reconcile: Call | None, was_open: bool) -> Any:
        # Whether an earlier call may have had its effect, and its outcome is unknown.
        is_open = False
        self.lease.ledger[self.step] = "busy-open"  # also when the answer gets lost
        columns = "answer, result::text, reason, extract(epoch FROM age)::text, is_own::text"
        answer, result, reason, age, is_own = await self.lease.renewing("begin_effect", columns, step=self.step)
        match answer:
            case "lost":
                raise self.lease.is_lost()
            case "done":
                self.lease.ledger[self.step] = "settled"
                return json.loads(result)
            case "rejected":
                self.lease.ledger[self.step] = "settled"
                raise self._rejected(reason)
            # One's own was recorded by a statement whose answer was lost: nothing has been called yet.
            case "open" if is_own != "true" or was_open:
                if reconcile is None:
                    is_open = True
                else:
                    found = await self._reconciled(reconcile, float(age))
                    if isinstance(found, Happened):
                        return found.result
                if await self.lease.renewing("begin_effect_again", step=self.step) != ("true",):
                    raise self.lease.is_lost()
        # If beginning took too long, or the process was suspended, another one may have taken over.
        self.lease.check()
        try:
            return await self._done(await self.asked(call))
        except Rejected as no:
            raise await self._remember_no(no) from no
        except NotSent as failed:
            if is_open:
                raise self._unknown(failed) from failed
            await self._end("absent")
            self.lease.ledger[self.step] = "idle"
            raise NotSent(f'effect "{self.step}" failed: {first_line(failed)}') from failed

    async def _reconciled(self, reconcile: Call, age: float) -> Any:
        """Asks the provider about an earlier call. Fails while its outcome stays unknown."""
        try:
            found = await self.asked(reconcile)
        except Rejected as no:
            raise await self._remember_no(no) from no
        except NotSent as failed:
            raise self._unknown(failed) from failed
        if isinstance(found, Happened):
            return Happened(await self._done(found.result))
        if found is Absent and age >= self.settles_within:
            return found
        if found is Absent:
            why = f"the provider knows nothing of it, but a call settles within {self.settles_within:g} s"
            raise Settling(str(self._unknown(why)), self.settles_within - age)
        is_odd = found is not Unknown
        raise self._unknown(f"reconcile returned a {type(found).__name__}, not Happened(..), Absent or Unknown" if is_odd else "the provider cannot tell yet")

    async def asked(self, ask: Call) -> Any:
        """What the provider answers. All errors but two leave the outcome unknown, and so does a silence."""
        try:
            async with asyncio.timeout(self.timeout) as limit:
                answer = ask(self.key)
                return await answer if inspect.isawaitable(answer) else answer
        except (Rejected, NotSent):
            raise
        except Exception as error:
            raise self._unknown(f"no answer within {self.timeout:g} s" if limit.expired() else error) from error

    async def _done(self, result: Any) -> Any:
        try:
            text = json.dumps(result, allow_nan=False)
            if len(text) > REPLY_MAX:
                raise ValueError(f"it has {len(text)} bytes of JSON; the limit is {REPLY_MAX} bytes (1 MiB)")
        except Exception as error:
            # It happened, so it stays open; and each later run will say the same.
            raise self._unknown(f"its result cannot be remembered, so return less from the call: {first_line(error)}") from error
        await self._end("done", result=Typed("json", text))
        self.lease.ledger[self.step] = "settled"
        # As later runs will get it.
        return json.loads(text)

    async def _remember_no(self, no: Rejected) -> Rejected:
        reason = first_line(no).removeprefix("Rejected: ")
        await self._end("rejected", reason=reason)
        self.lease.ledger[self.step] = "settled"
        return self._rejected(reason)

    async def _end(self, status: str, **how: Any) -> None:
        (is_held,) = await self.lease.renewing("end_effect", step=self.step, status=status, **how)
        if is_held != "true":
            raise self.lease.is_lost()

    def _rejected(self, reason: str) -> Rejected:
        return Rejected(f'effect "{self.step}" was rejected: {reason}')

    def _unknown(self, why: Any) -> OutcomeUnknown:
        why = first_line(why) if isinstance(why, BaseException) else why
        return OutcomeUnknown(f'the outcome of effect "{self.step}" is unknown: {why}')
