"""Follow a stream over many connections: print its records, count them, keep the position.

The position advances only after everything before it was written to the output, so that it is right
to start from, however this process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gateway.core.backoff import BackoffPolicy
from gateway.errors import GatewayError

from .printer import OutputWriter, Printer, StatusReporter, describe_gap
from .source import RECORD_EVENTS, ConnectionLost, SseSource, StreamEvent

INITIAL_DELAY_S, MAX_DELAY_S = 1.0, 30.0  # seconds


@dataclass
class ReconnectBackoff:
    """The delays before the connections of one stream.

    The first delay is the server's `retry:`. It doubles with each failed attempt, with jitter, so
    that many clients do not reconnect at the same time. A delay is never shorter than
    `Retry-After`. `failures` counts attempts since the stream was last open.
    """

    random: Callable[[], float] = random.random
    failures: int = 0

    def reset(self) -> None:
        self.failures = 0

    def next_delay(self, retry: float | None, retry_after: float = 0.0) -> float:
        """Return the seconds until the next attempt, and count it; the arguments are in seconds."""
        first = INITIAL_DELAY_S if retry is None else retry
        if self.failures == 0:
            delay = first
        else:
            policy = BackoffPolicy(2 * max(first, 0.1), MAX_DELAY_S)
            delay = policy.compute_delay(self.failures, self.random)
        self.failures += 1
        return max(delay, retry_after)


# Reasons of `end` after which there is nothing to reconnect for, with the error if it is one.
FINAL_REASONS = {"until": None, "offset-out-of-range": "Kafka no longer has the next record"}
# Codes of an `error` instead of a record.
MISSING_RECORD_CODES = ("value-not-text", "value-not-json", "value-invalid")


@dataclass
class StreamFollower:
    """The run of one stream from its start to its end. `run.TailSession` creates one.

    Attributes:
        position: The start of the next connection; None for the start of the query.
        remaining: How many more records are wanted; None for all.
        strict: A gap or a missing record is an error, and the position stays before it.
        explain_absence: Returns the error if the first connection fails. None: it is one only if
            the server was not reached, and otherwise the follower tries again.
        was_opened: Whether a connection has delivered something.
    """

    source: SseSource
    printer: Printer
    output: OutputWriter
    notes: StatusReporter
    position: str | None = None
    remaining: int | None = None
    strict: bool = False
    explain_absence: Callable[[], Awaitable[str]] | None = None
    was_opened: bool = False

    def __post_init__(self) -> None:
        self._reconnects = ReconnectBackoff()
        self._lines = bytearray()  # formatted, and not written yet
        self._reached_position = self.position  # after the last event of `_lines`

    async def run(self) -> None:
        while True:
            try:
                if await self._follow_connection():
                    return
            except ConnectionLost as lost:
                await self._raise_if_never_opened(lost)
                wait = self._reconnects.next_delay(self.source.retry, lost.retry_after)
                self.notes.report(f"{lost}; connecting again in {wait:.1f} s", "warn")
                await asyncio.sleep(wait)

    async def _raise_if_never_opened(self, lost: ConnectionLost) -> None:
        """Fail if there was never a stream: the address is probably wrong."""
        explain = self.explain_absence
        if self.was_opened or (lost.was_reached and explain is None):
            return
        reason = f"{lost}; is it running there?" if explain is None else await explain()
        raise GatewayError(f"no stream from {self.source.display_name}: {reason}") from lost

    async def _follow_connection(self) -> bool:
        events = self.source.iter_events(self.position)
        async with contextlib.aclosing(events) as batches:
            async for batch in batches:
                self.was_opened = True
                self._reconnects.reset()
                if await self._handle_batch(batch):
                    return True
        raise ConnectionLost("the connection was closed")

    async def _handle_batch(self, batch: list[StreamEvent]) -> bool:
        for event in batch:
            if event.name in RECORD_EVENTS:
                self._lines += self.printer.format_line(event)
                if self.remaining is not None:
                    self.remaining -= 1
            elif event.name != "position":
                await self._flush_lines()
                if self._handle_control_event(event):
                    return True
            self._reached_position = event.position or self._reached_position
            if self.remaining == 0:
                break
        await self._flush_lines()
        return self.remaining == 0

    async def _flush_lines(self) -> None:
        """Write the formatted lines; the position follows only after that."""
        lines, self._lines = bytes(self._lines), bytearray()
        await self.output.write(lines)
        self.position = self._reached_position

    def _handle_control_event(self, event: StreamEvent) -> bool:
        data = _parse_object(event.data)
        if self.strict and event.name == "gap":
            raise GatewayError(f"{describe_gap(data)}; without --strict it is skipped")
        if self.strict and event.name == "error" and data.get("code") in MISSING_RECORD_CODES:
            raise GatewayError(f"{data.get('message')}")
        self.notes.report_event(event, data)
        if event.name == "begin":
            self.printer.start_stream(list(data.get("partitions") or ()))
        return event.name == "end" and self._handle_end(data, event.position)

    def _handle_end(self, data: dict[str, Any], position: str | None) -> bool:
        """Handle `end`; raise ConnectionLost if another connection can continue the stream."""
        reason = str(data.get("reason"))
        self.position = self._reached_position = position or self._reached_position
        if reason not in FINAL_REASONS:
            raise ConnectionLost(f"the gateway ended the stream ({reason})")
        if FINAL_REASONS[reason] is not None:
            raise GatewayError(f"the gateway ended the stream ({reason}): {FINAL_REASONS[reason]}")
        return True


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"data": data.decode(errors="replace")}
