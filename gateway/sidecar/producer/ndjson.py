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
from gateway.formats import exact_numbers
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.http.status import NO_STORE_HEADERS, StatusError, describe_error

from . import outcome
from .encoding import INVALID, TOO_LARGE, UNWRITTEN, EncodedRecords, FieldEncoding, map_formats

if TYPE_CHECKING:
    from .producer import ProducerComponent

IDLE_TIMEOUT_S = 300.0  # seconds without a byte after which a stream ends
MAX_LINES_PER_WRITE = 100  # lines that are handed over at once
RETRY_DELAY_S = 0.05  # seconds until the producer is asked again whether it has room
LINGER_S = (
    2.0  # seconds for which what still comes is read after the end: unread, it would eat that
)


class InputEnded(Exception):
    """No more lines are taken. code, error: what the client is told as its last line, if that."""

    def __init__(self, code: int, error: str) -> None:
        super().__init__(error)
        self.code = code
        self.error = error


class NdjsonProduceResponse(Response):
    """The answer to a stream of records; it begins with the first of them."""

    media_type = "application/x-ndjson"

    def __init__(
        self,
        request: Request,
        producers: ProducerComponent,
        topic: TopicMetadata,
        encodings: Sequence[FieldEncoding],
    ) -> None:
        super().__init__(headers=dict(NO_STORE_HEADERS))
        del self.headers["content-length"]
        self._request = request
        self._producers = producers
        self._topic = topic
        self._encodings = encodings
        self._formats = map_formats(encodings)
        self._in_flight = 0
        self._has_capacity = asyncio.Event()
        self._line_number = 0  # of lines that were read
        self._results: asyncio.Queue[asyncio.Future[list[dict[str, Any]]] | None] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces = self._request.stream()
        reading = asyncio.create_task(self._read_records(pieces))
        try:
            await self._write_results(send, receive, reading)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            while not self._results.empty():
                left = self._results.get_nowait()
                if left is not None:
                    left.cancel()

    async def _write_results(
        self, send: Send, receive: Receive, reading: asyncio.Task[None]
    ) -> None:
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
            self._in_flight -= len(told)
            self._has_capacity.set()
        try:
            await reading
        except InputEnded as exc:
            last = orjson.dumps({"errorCode": exc.code, "error": exc.error}) + b"\n"
            await send({"type": "http.response.body", "body": last, "more_body": True})
            await _discard_rest(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read_records(self, pieces: AsyncIterator[bytes]) -> None:
        try:
            async for lines in self._iter_lines(pieces):
                for at in range(0, len(lines), MAX_LINES_PER_WRITE):
                    await self._produce_lines(lines[at : at + MAX_LINES_PER_WRITE])
        finally:
            self._results.put_nowait(None)

    async def _iter_lines(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
        """Whole ones, as many as came at once."""
        rest, most = b"", self._producers.settings.max_bytes
        while True:
            piece = await self._read_piece(pieces)
            if piece is None:
                break
            *lines, rest = (rest + piece).split(b"\n") if b"\n" in piece else (rest + piece,)
            good = list(takewhile(lambda line: len(line) <= most, lines))
            if good:
                yield good
            if len(good) < len(lines) or len(rest) > most:
                what = f"line {self._line_number + 1} is over {most} bytes; send fewer bytes in one"
                raise InputEnded(TOO_LARGE, what)
        if rest:
            yield [rest]

    async def _read_piece(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        """None at the end, also that of the client."""
        asked = asyncio.ensure_future(anext(pieces, None))
        draining = asyncio.ensure_future(self._producers.context.draining.wait())
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                await asyncio.wait([asked, draining], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise InputEnded(
                408, f"nothing came for {IDLE_TIMEOUT_S:g} s; go on in another request"
            ) from None
        finally:
            draining.cancel()
            if not asked.done():
                asked.cancel()
        if not asked.done():
            what = f"the sidecar ends; go on after line {self._line_number} with another one"
            raise InputEnded(UNWRITTEN, what)
        try:
            return asked.result()
        except ClientDisconnect:
            return None

    async def _produce_lines(self, lines: Sequence[bytes]) -> None:
        """Wait for room, and write them. A line that is no record is told as that."""
        first = self._line_number + 1
        self._line_number += len(lines)
        records: list[Any] = []
        numbers: list[int] = []  # of their lines
        told: list[dict[str, Any] | None] = []  # None: comes from Kafka
        for number, line in enumerate(lines, first):
            if line.strip():
                told.append(self._parse_line(line, number, records))
                if told[-1] is None:
                    numbers.append(number)
        if not told:
            return
        while self._in_flight and self._in_flight + len(told) > self._producers.settings.streamed:
            self._has_capacity.clear()
            await self._has_capacity.wait()
        self._in_flight += len(told)
        done: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._results.put_nowait(done)
        if not records:
            done.set_result([each for each in told if each is not None])
            return
        try:
            order, results = await self._produce_with_retries(
                records, lambda index: f"line {numbers[index]}: record"
            )
        except GatewayError as exc:
            code, _, what = describe_error(exc)
            failed = {"errorCode": code, "error": what}
            done.set_result([failed if each is None else each for each in told])
            return
        results.add_done_callback(lambda results: _set_results(order, results, told, done))

    def _parse_line(self, line: bytes, number: int, records: list[Any]) -> dict[str, Any] | None:
        try:
            record = orjson.loads(line)
            self._producers.record_validator.validate(record, "record")
            exact_numbers.keep_exact_numbers(line, [record], self._formats, member=None)
        except orjson.JSONDecodeError as exc:
            return {"errorCode": INVALID, "error": f"line {number}: is not JSON: {exc}"}
        except StatusError as exc:
            return {"errorCode": INVALID, "error": f"line {number}: {exc}"}
        records.append(record)
        return None

    async def _produce_with_retries(
        self, records: Sequence[Any], describe_record: Callable[[int], str]
    ) -> tuple[EncodedRecords, asyncio.Future[list[int | KafkaError]]]:
        """Once the producer has room."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._producers.settings.timeout
        while True:
            try:
                return await self._producers.produce(
                    self._topic, records, self._encodings, describe_record
                )
            except BrokerUnavailable:
                if loop.time() > until:
                    raise
                await asyncio.sleep(RETRY_DELAY_S)


async def _discard_rest(receive: Receive) -> None:
    """Read what still comes, and do nothing with it."""
    try:
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return


def _set_results(
    order: EncodedRecords,
    results: asyncio.Future[list[int | KafkaError]],
    told: Sequence[dict[str, Any] | None],
    done: asyncio.Future[list[dict[str, Any]]],
) -> None:
    if done.done() or results.cancelled():
        return
    written = iter(outcome.describe_results(order, results.result()))
    done.set_result([next(written) if one is None else one for one in told])
