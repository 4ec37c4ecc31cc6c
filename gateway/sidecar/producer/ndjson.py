"""Write a stream of records: one line in is a record, one line out is its outcome.

Both directions are bounded: only so many records may be in flight, and no more records are read
from a client that does not read results.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.client_memory import ClientMemory, HeldPart, estimate_parsed_bytes
from gateway.config.sections.sidecar import Producer as Section
from gateway.errors import BrokerUnavailable, GatewayError, KafkaError
from gateway.formats.exact_values import keep_exact_numbers
from gateway.sidecar.http.requests import get_lifetime
from gateway.sidecar.http.spec import Validator
from gateway.sidecar.http.status import NO_STORE_HEADERS, StatusError, describe_error
from gateway.sidecar.turns import take_turns

from .records import (
    INVALID,
    TOO_LARGE,
    UNWRITTEN,
    EncodedRecords,
    FieldEncoding,
    describe_results,
    map_formats,
)

# Encodes validated records of one topic, given what counts their bytes, and what returns the name
# of a record in messages by its index.
EncodeRecords = Callable[
    [Sequence[Any], Callable[[int], None], Callable[[int], str]], Awaitable[EncodedRecords]
]
# Hands encoded records to Kafka.
SendRecords = Callable[[EncodedRecords], Awaitable[asyncio.Future[list[int | KafkaError]]]]

IDLE_TIMEOUT_S = 300.0  # without a byte, before a stream is ended
MAX_LINES_PER_WRITE = 100  # that are handed to the producer at once
RETRY_DELAY_S = 0.05  # before a producer whose buffer is full is tried again
# For how long input is read and discarded after the last line. A socket that is closed with unread
# input sends a reset, and that may discard the last line before the client reads it.
LINGER_S = 2.0


class InputEnded(Exception):
    """No more lines are accepted; the client gets `code` in the last line."""

    def __init__(self, code: int, error: str) -> None:
        super().__init__(error)
        self.code = code
        self.error = error


class NdjsonProduceResponse(Response):
    """Read records from a request while the results of earlier ones are sent.

    `_read_records` reads lines and hands them to the producer; `_write_results` sends the results
    in the order of the lines. Between them is `_results`, a queue of futures in that order, whose
    length is bounded by `_in_flight`. The response starts with the first result.

    It holds the beginning of a line, and lines until they are encoded, and ends the input if these
    are to be let go of.

    Args:
        encode_records: Encodes validated records.
        send_records: Hands them to Kafka, unless too much waits already.
    """

    media_type = "application/x-ndjson"

    def __init__(
        self,
        request: Request,
        settings: Section,
        draining: asyncio.Event,
        client_memory: ClientMemory,
        record_validator: Validator,
        encodings: Sequence[FieldEncoding],
        encode_records: EncodeRecords,
        send_records: SendRecords,
    ) -> None:
        super().__init__(headers=dict(NO_STORE_HEADERS))
        del self.headers["content-length"]
        self._request = request
        self._settings = settings
        self._draining = draining
        self._client_memory = client_memory
        self._is_released = False
        self._record_validator = record_validator
        self._encode_records, self._send_records = encode_records, send_records
        self._formats = map_formats(encodings)
        self._in_flight = 0  # records whose results were not sent yet
        self._has_capacity = asyncio.Event()  # set whenever results were sent
        self._line_number = 0  # lines read so far
        # One future for each write of up to MAX_LINES_PER_WRITE lines; None is the end.
        self._results: asyncio.Queue[asyncio.Future[list[dict[str, Any]]] | None] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks = self._request.stream()
        self._reading = asyncio.create_task(self._read_records(chunks))
        try:
            await self._write_results(send, receive)
        finally:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            del self._reading  # its exception refers to this object: it would be a cycle
            while not self._results.empty():
                result = self._results.get_nowait()
                if result is not None:
                    result.cancel()

    def release_memory(self) -> None:
        self._is_released = True
        self._reading.cancel()

    async def _write_results(self, send: Send, receive: Receive) -> None:
        """Send results until the input has ended, then the reason if the client did not end it."""
        has_started = False
        while True:
            result = await self._results.get()
            if not has_started:
                await send({"type": "http.response.start", "status": 200,
                            "headers": [*self.raw_headers, (b"connection", b"close")]})  # fmt: skip
                has_started = True
            if result is None:
                break
            results = await result
            text = b"".join([orjson.dumps(line) + b"\n" for line in results])
            await send({"type": "http.response.body", "body": text, "more_body": True})
            self._in_flight -= len(results)
            self._has_capacity.set()
        try:
            await self._reading
        except InputEnded as exc:
            last_line = orjson.dumps({"errorCode": exc.code, "error": exc.error}) + b"\n"
            await send({"type": "http.response.body", "body": last_line, "more_body": True})
            await _discard_rest(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read_records(self, chunks: AsyncIterator[bytes]) -> None:
        try:
            async for lines in self._iter_lines(chunks):
                for start in range(0, len(lines), MAX_LINES_PER_WRITE):
                    await self._produce_lines(lines[start : start + MAX_LINES_PER_WRITE])
                self._client_memory.release(HeldPart.PARSED, self)
        except asyncio.CancelledError:
            if not self._is_released:
                raise
        finally:
            self._client_memory.release(HeldPart.RECEIVED, self)
            self._client_memory.release(HeldPart.PARSED, self)
            self._results.put_nowait(None)
        if self._is_released:  # not in `except`, whose traceback keeps the line that is let go of
            problem = "too much of memory is in use; go on after the last line with a result"
            raise InputEnded(UNWRITTEN, problem)

    async def _iter_lines(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
        """Yield whole lines as they arrive; raises InputEnded if a line is too long."""
        rest, max_bytes = bytearray(), self._settings.max_bytes
        while True:
            self._client_memory.hold_if_large(HeldPart.RECEIVED, self, len(rest))
            chunk = await self._read_chunk(chunks)
            if chunk is None:
                break
            rest += chunk
            lines: list[bytes] = []
            if b"\n" in chunk:
                *lines, last = bytes(rest).split(b"\n")
                rest = bytearray(last)
            # Lines before one that is too long are still written.
            accepted = list(takewhile(lambda line: len(line) <= max_bytes, lines))
            if accepted:
                yield accepted
            if len(accepted) < len(lines) or len(rest) > max_bytes:
                problem = f"line {self._line_number + 1} is over {max_bytes} bytes"
                raise InputEnded(TOO_LARGE, f"{problem}; send fewer bytes in one")
        if rest:
            yield [bytes(rest)]

    async def _read_chunk(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        """Return the next bytes, None at the end.

        Raises:
            InputEnded: It is idle, its sender's token has expired, or the sidecar ends.
        """
        lifetime_s = get_lifetime(self._request.scope)
        reading = asyncio.ensure_future(anext(chunks, None))
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            async with asyncio.timeout(min(IDLE_TIMEOUT_S, lifetime_s)):
                await asyncio.wait([reading, draining], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            if lifetime_s < IDLE_TIMEOUT_S:
                problem = f"the token has expired; go on after line {self._line_number} with a new"
                raise InputEnded(401, f"{problem} one") from None
            raise InputEnded(
                408, f"nothing came for {IDLE_TIMEOUT_S:g} s; go on in another request"
            ) from None
        finally:
            draining.cancel()
            if not reading.done():
                reading.cancel()
        if not reading.done():
            problem = f"the sidecar ends; go on after line {self._line_number} with another one"
            raise InputEnded(UNWRITTEN, problem)
        try:
            return reading.result()
        except ClientDisconnect:
            return None

    async def _produce_lines(self, lines: Sequence[bytes]) -> None:
        """Wait until lines may be in flight, and write them. One that is no record fails alone."""
        first = self._line_number + 1
        self._line_number += len(lines)
        size = estimate_parsed_bytes(b"\n".join(lines))

        def hold(encoded_size: int) -> None:
            self._client_memory.hold_if_large(HeldPart.PARSED, self, size + encoded_size)

        hold(0)
        records: list[Any] = []
        numbers: list[int] = []  # the line of each record
        line_results: list[
            dict[str, Any] | None
        ] = []  # one for each line; None if Kafka decides it
        async with take_turns() as turns:
            for number, line in enumerate(lines, first):
                if turns.is_over():
                    await turns.pass_on()
                if line.strip():
                    line_results.append(self._parse_line(line, number, records))
                    if line_results[-1] is None:
                        numbers.append(number)
        if not line_results:
            return
        # Lines that exceed the limit alone are written once no others are in flight.
        while self._in_flight and self._in_flight + len(line_results) > self._settings.streamed:
            self._has_capacity.clear()
            await self._has_capacity.wait()
        self._in_flight += len(line_results)
        future: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        if not records:
            future.set_result([result for result in line_results if result is not None])
        else:
            try:
                encoded = await self._encode_records(
                    records, hold, lambda index: f"line {numbers[index]}: record"
                )
                hold(encoded.size)
                results = await self._send_with_retries(encoded)
            except GatewayError as exc:
                code, _, detail = describe_error(exc)
                failure = {"errorCode": code, "error": detail}
                future.set_result(
                    [failure if result is None else result for result in line_results]
                )
            else:
                results.add_done_callback(
                    lambda results: _set_results(encoded, results, line_results, future)
                )
        # Only now that it gets a result: nobody waits for one that an unexpected error prevented.
        self._results.put_nowait(future)

    def _parse_line(self, line: bytes, number: int, records: list[Any]) -> dict[str, Any] | None:
        try:
            record = orjson.loads(line)
            self._record_validator.validate(record, "record")
            keep_exact_numbers(
                line, record, [record], self._formats, select_records=lambda parsed: [parsed]
            )
        except orjson.JSONDecodeError as exc:
            return {"errorCode": INVALID, "error": f"line {number}: is not JSON: {exc}"}
        except StatusError as exc:
            return {"errorCode": INVALID, "error": f"line {number}: {exc}"}
        records.append(record)
        return None

    async def _send_with_retries(
        self, encoded: EncodedRecords
    ) -> asyncio.Future[list[int | KafkaError]]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.timeout
        while True:
            try:
                return await self._send_records(encoded)
            except BrokerUnavailable:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(RETRY_DELAY_S)


async def _discard_rest(receive: Receive) -> None:
    try:
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return


def _set_results(
    encoded: EncodedRecords,
    results: asyncio.Future[list[int | KafkaError]],
    line_results: Sequence[dict[str, Any] | None],
    future: asyncio.Future[list[dict[str, Any]]],
) -> None:
    if future.done() or results.cancelled():
        return
    written = iter(describe_results(encoded, results.result()))
    future.set_result([next(written) if result is None else result for result in line_results])
