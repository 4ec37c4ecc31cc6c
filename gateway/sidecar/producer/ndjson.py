"""Streamed writing: a record a line in, what became of it a line out, for as long as it lasts.

Both ways are held back: so many records are under way, and whoever does not read what became of
them is not read from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import BrokerUnavailable, GatewayError, KafkaError
from gateway.formats import digits
from gateway.kafka.protocol.requests import TopicAnswer
from gateway.sidecar.http.status import UNCACHED, Refusal, status_of

from . import outcome
from .order import TOO_LARGE, UNWRITTEN, WRONG, Order, Side, formats_of

if TYPE_CHECKING:
    from .producer import Producers

IDLE = 300.0  # seconds without a byte after which a stream ends
MOST = 100  # lines that are handed over at once
AGAIN = 0.05  # seconds until the producer is asked again whether it has room
LINGER = 2.0  # seconds for which what still comes is read after the end: unread, it would eat that


class Ended(Exception):
    """No more lines are taken. code, error: what the client is told as its last line, if that."""

    def __init__(self, code: int, error: str) -> None:
        super().__init__(error)
        self.code = code
        self.error = error


class Lines(Response):
    """The answer to a stream of records; it begins with the first of them."""

    media_type = "application/x-ndjson"

    def __init__(
        self, request: Request, producers: Producers, topic: TopicAnswer, sides: Sequence[Side]
    ) -> None:
        super().__init__(headers=dict(UNCACHED))
        del self.headers["content-length"]
        self._request = request
        self._producers = producers
        self._topic = topic
        self._sides = sides
        self._formats = formats_of(sides)
        self._under_way = 0
        self._room = asyncio.Event()
        self._number = 0  # of lines that were read
        self._results: asyncio.Queue[asyncio.Future[list[dict[str, Any]]] | None] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces = self._request.stream()
        reading = asyncio.create_task(self._read(pieces))
        try:
            await self._write(send, receive, reading)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            while not self._results.empty():
                left = self._results.get_nowait()
                if left is not None:
                    left.cancel()

    async def _write(self, send: Send, receive: Receive, reading: asyncio.Task[None]) -> None:
        begun = False
        while True:
            result = await self._results.get()
            if not begun:
                await send({"type": "http.response.start", "status": 200,
                            "headers": [*self.raw_headers, (b"connection", b"close")]})  # fmt: skip
                begun = True
            if result is None:
                break
            told = await result
            text = b"".join([orjson.dumps(each) + b"\n" for each in told])
            await send({"type": "http.response.body", "body": text, "more_body": True})
            self._under_way -= len(told)
            self._room.set()
        try:
            await reading
        except Ended as exc:
            last = orjson.dumps({"errorCode": exc.code, "error": exc.error}) + b"\n"
            await send({"type": "http.response.body", "body": last, "more_body": True})
            await _forget(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read(self, pieces: AsyncIterator[bytes]) -> None:
        try:
            async for lines in self._lines(pieces):
                for at in range(0, len(lines), MOST):
                    await self._hand_over(lines[at : at + MOST])
        finally:
            self._results.put_nowait(None)

    async def _lines(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
        """Whole ones, as many as came at once."""
        rest, most = b"", self._producers.settings.max_bytes
        while True:
            piece = await self._piece(pieces)
            if piece is None:
                break
            *lines, rest = (rest + piece).split(b"\n") if b"\n" in piece else (rest + piece,)
            good = list(takewhile(lambda line: len(line) <= most, lines))
            if good:
                yield good
            if len(good) < len(lines) or len(rest) > most:
                what = f"line {self._number + 1} is over {most} bytes; send fewer bytes in one"
                raise Ended(TOO_LARGE, what)
        if rest:
            yield [rest]

    async def _piece(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        """None at the end, also that of the client."""
        asked = asyncio.ensure_future(anext(pieces, None))
        draining = asyncio.ensure_future(self._producers.context.draining.wait())
        try:
            async with asyncio.timeout(IDLE):
                await asyncio.wait([asked, draining], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise Ended(408, f"nothing came for {IDLE:g} s; go on in another request") from None
        finally:
            draining.cancel()
            if not asked.done():
                asked.cancel()
        if not asked.done():
            what = f"the sidecar ends; go on after line {self._number} with another one"
            raise Ended(UNWRITTEN, what)
        try:
            return asked.result()
        except ClientDisconnect:
            return None

    async def _hand_over(self, lines: Sequence[bytes]) -> None:
        """Wait for room, and write them. A line that is no record is told as that."""
        first = self._number + 1
        self._number += len(lines)
        records: list[Any] = []
        numbers: list[int] = []  # of their lines
        told: list[dict[str, Any] | None] = []  # None: comes from Kafka
        for number, line in enumerate(lines, first):
            if line.strip():
                told.append(self._parsed(line, number, records))
                if told[-1] is None:
                    numbers.append(number)
        if not told:
            return
        while self._under_way and self._under_way + len(told) > self._producers.settings.streamed:
            self._room.clear()
            await self._room.wait()
        self._under_way += len(told)
        done: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._results.put_nowait(done)
        if not records:
            done.set_result([each for each in told if each is not None])
            return
        try:
            order, results = await self._taken(
                records, lambda index: f"line {numbers[index]}: record"
            )
        except GatewayError as exc:
            code, _, what = status_of(exc)
            failed = {"errorCode": code, "error": what}
            done.set_result([failed if each is None else each for each in told])
            return
        results.add_done_callback(lambda results: _tell(order, results, told, done))

    def _parsed(self, line: bytes, number: int, records: list[Any]) -> dict[str, Any] | None:
        try:
            record = orjson.loads(line)
            self._producers.record.check(record, "record")
            digits.keep(line, [record], self._formats, at=None)
        except orjson.JSONDecodeError as exc:
            return {"errorCode": WRONG, "error": f"line {number}: is not JSON: {exc}"}
        except Refusal as exc:
            return {"errorCode": WRONG, "error": f"line {number}: {exc}"}
        records.append(record)
        return None

    async def _taken(
        self, records: Sequence[Any], called: Callable[[int], str]
    ) -> tuple[Order, asyncio.Future[list[int | KafkaError]]]:
        """Once the producer has room."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._producers.settings.timeout
        while True:
            try:
                return await self._producers.written(self._topic, records, self._sides, called)
            except BrokerUnavailable:
                if loop.time() > until:
                    raise
                await asyncio.sleep(AGAIN)


async def _forget(receive: Receive) -> None:
    """Read what still comes, and do nothing with it."""
    try:
        async with asyncio.timeout(LINGER):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return


def _tell(
    order: Order,
    results: asyncio.Future[list[int | KafkaError]],
    told: Sequence[dict[str, Any] | None],
    done: asyncio.Future[list[dict[str, Any]]],
) -> None:
    if done.done() or results.cancelled():
        return
    written = iter(outcome.each(order, results.result()))
    done.set_result([next(written) if one is None else one for one in told])
