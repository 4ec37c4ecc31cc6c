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

from .item import RECORDS, Item, Lost, Source
from .notes import Notes, gap
from .output import Output
from .printing import Printer
from .reconnect import Reconnects

FINAL = {"until": None, "offset-out-of-range": "Kafka has not what comes next any more"}
MISSING = ("value-not-text", "value-invalid")  # an `error` in place of a record


class Follower:
    """position: where to begin, None for where the query says; moves on.
    count:    so many records and then the end.
    strict:   a record that will not come is a failure, and the position stays before it.
    absent:   what to say if there is no stream at first; None to wait for one, as long as the
              server answers at all.
    """

    def __init__(
        self,
        source: Source,
        printer: Printer,
        output: Output,
        notes: Notes,
        *,
        position: str | None = None,
        count: int | None = None,
        strict: bool = False,
        absent: str | None = None,
    ) -> None:
        self.position = position
        self.left = count
        self._source = source
        self._printer = printer
        self._output = output
        self._notes = notes
        self._strict = strict
        self._absent = absent
        self._reconnects = Reconnects()
        self._opened = False
        self._lines = bytearray()
        self._reached = position

    async def run(self) -> None:
        """Return when the stream is at its end. Raises GatewayError, Closed."""
        while True:
            try:
                if await self._connection():
                    return
            except Lost as lost:
                self._must_have_been_there(lost)
                wait = self._reconnects.delay(self._source.retry, lost.after)
                self._notes.say(f"{lost}; connecting again in {wait:.1f} s", "warn")
                await asyncio.sleep(wait)

    def _must_have_been_there(self, lost: Lost) -> None:
        """A wrong address is a mistake to be told, not to be tried for ever."""
        if self._opened or (lost.answered and self._absent is None):
            return
        what = self._absent or f"{lost}; is it running there?"
        raise GatewayError(f"no stream from {self._source.shown}: {what}") from lost

    async def _connection(self) -> bool:
        items = self._source.items(self.position, self.left)
        async with contextlib.aclosing(items) as batches:
            async for batch in batches:
                self._opened = True
                self._reconnects.opened()
                if await self._take(batch):
                    return True
        raise Lost("the connection was closed")

    async def _take(self, batch: list[Item]) -> bool:
        """True at the end."""
        for item in batch:
            if item.name in RECORDS:
                self._lines += self._printer.line(item)
                if self.left is not None:
                    self.left -= 1
            elif item.name != "position":
                await self._write()
                if self._control(item):
                    return True
            self._reached = item.position or self._reached
            if self.left == 0:
                break
        await self._write()
        return self.left == 0

    async def _write(self) -> None:
        lines, self._lines = bytes(self._lines), bytearray()
        await self._output.write(lines)
        self.position = self._reached

    def _control(self, item: Item) -> bool:
        told = _object(item.data)
        if self._strict and item.name == "gap":
            raise GatewayError(f"{gap(told)}; without --strict it is passed over")
        if self._strict and item.name == "error" and told.get("code") in MISSING:
            raise GatewayError(f"{told.get('message')}")
        self._notes.tell(item, told)
        if item.name == "begin":
            self._printer.begin(list(told.get("partitions") or ()))
        return item.name == "end" and self._ended(told, item.position)

    def _ended(self, told: dict[str, Any], position: str | None) -> bool:
        """Raises Lost if the stream goes on elsewhere or later."""
        reason = str(told.get("reason"))
        self.position = self._reached = position or self._reached
        if reason not in FINAL:
            raise Lost(f"the gateway ended the stream ({reason})")
        if FINAL[reason] is not None:
            raise GatewayError(f"the gateway ended the stream ({reason}): {FINAL[reason]}")
        return True


def _object(data: bytes) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except ValueError:
        told = None
    return told if isinstance(told, dict) else {"data": data.decode(errors="replace")}
