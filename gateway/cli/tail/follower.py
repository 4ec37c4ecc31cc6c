"""A stream followed over all its connections: printed, counted, and gone on with exactly.

The position moves once what came before it is written. So it is what to start from again,
whatever ends this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from gateway.errors import GatewayError

from .output import OutputWriter
from .printer import Printer
from .reconnect import ReconnectBackoff
from .source import RECORD_EVENTS, ConnectionLost, StreamEvent, StreamSource
from .status import StatusReporter, describe_gap

FINAL_REASONS = {"until": None, "offset-out-of-range": "Kafka has not what comes next any more"}
MISSING_RECORD_CODES = ("value-not-text", "value-invalid")  # an `error` in place of a record


class StreamFollower:
    """position: where to begin, None for where the query says; moves on.
    count:    so many records and then the end.
    strict:   a record that will not come is a failure, and the position stays before it.
    absent:   what to say if there is no stream at first; None to wait for one, as long as the
              server answers at all.
    """

    def __init__(
        self,
        source: StreamSource,
        printer: Printer,
        output: OutputWriter,
        notes: StatusReporter,
        *,
        position: str | None = None,
        count: int | None = None,
        strict: bool = False,
        absent_message: str | None = None,
    ) -> None:
        self.position = position
        self.remaining = count
        self._source = source
        self._printer = printer
        self._output = output
        self._notes = notes
        self._strict = strict
        self._absent_message = absent_message
        self._reconnects = ReconnectBackoff()
        self._was_opened = False
        self._lines = bytearray()
        self._reached_position = position

    async def run(self) -> None:
        """Return when the stream is at its end. Raises GatewayError, Closed."""
        while True:
            try:
                if await self._follow_connection():
                    return
            except ConnectionLost as lost:
                self._raise_if_never_opened(lost)
                wait = self._reconnects.next_delay(self._source.retry, lost.retry_after)
                self._notes.report(f"{lost}; connecting again in {wait:.1f} s", "warn")
                await asyncio.sleep(wait)

    def _raise_if_never_opened(self, lost: ConnectionLost) -> None:
        """A wrong address is a mistake to be told, not to be tried for ever."""
        if self._was_opened or (lost.was_reached and self._absent_message is None):
            return
        what = self._absent_message or f"{lost}; is it running there?"
        raise GatewayError(f"no stream from {self._source.display_name}: {what}") from lost

    async def _follow_connection(self) -> bool:
        items = self._source.iter_events(self.position, self.remaining)
        async with contextlib.aclosing(items) as batches:
            async for batch in batches:
                self._was_opened = True
                self._reconnects.reset()
                if await self._handle_batch(batch):
                    return True
        raise ConnectionLost("the connection was closed")

    async def _handle_batch(self, batch: list[StreamEvent]) -> bool:
        """True at the end."""
        for item in batch:
            if item.name in RECORD_EVENTS:
                self._lines += self._printer.format_line(item)
                if self.remaining is not None:
                    self.remaining -= 1
            elif item.name != "position":
                await self._flush_lines()
                if self._handle_control_event(item):
                    return True
            self._reached_position = item.position or self._reached_position
            if self.remaining == 0:
                break
        await self._flush_lines()
        return self.remaining == 0

    async def _flush_lines(self) -> None:
        lines, self._lines = bytes(self._lines), bytearray()
        await self._output.write(lines)
        self.position = self._reached_position

    def _handle_control_event(self, item: StreamEvent) -> bool:
        told = _parse_object(item.data)
        if self._strict and item.name == "gap":
            raise GatewayError(f"{describe_gap(told)}; without --strict it is passed over")
        if self._strict and item.name == "error" and told.get("code") in MISSING_RECORD_CODES:
            raise GatewayError(f"{told.get('message')}")
        self._notes.report_event(item, told)
        if item.name == "begin":
            self._printer.start_stream(list(told.get("partitions") or ()))
        return item.name == "end" and self._handle_end(told, item.position)

    def _handle_end(self, data: dict[str, Any], position: str | None) -> bool:
        """Raises Lost if the stream goes on elsewhere or later."""
        reason = str(data.get("reason"))
        self.position = self._reached_position = position or self._reached_position
        if reason not in FINAL_REASONS:
            raise ConnectionLost(f"the gateway ended the stream ({reason})")
        if FINAL_REASONS[reason] is not None:
            raise GatewayError(f"the gateway ended the stream ({reason}): {FINAL_REASONS[reason]}")
        return True


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except ValueError:
        told = None
    return told if isinstance(told, dict) else {"data": data.decode(errors="replace")}
