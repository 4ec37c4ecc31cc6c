"""How a line of input becomes a record, and how a receiver compares what came of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Semaphore, Thread
from typing import Any, BinaryIO

import orjson

from gateway.errors import GatewayError

CHUNK_BYTES = 1 << 20  # bytes read at once; over 12 partitions that is a batch of some 85 KB each


@dataclass(frozen=True, slots=True)
class LineFormat:
    """A line is a record: its bytes are the value, without the LF and exactly otherwise.

    key:        lines are JSON; the field that holds the key: its name, or a JSON pointer
                (RFC 6901) such as /customer/id. The value stays the whole line.
    separator:  the key stands before it, the value after it.
    null_empty: an empty value is a tombstone.
    """

    key: str | None = None
    separator: bytes | None = None
    null_empty: bool = False

    def __post_init__(self) -> None:
        if self.key is not None and self.separator is not None:
            raise ValueError("a key is either a field of JSON or stands before a separator")

    def parse_line(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None]:
        """Key and value. Raises GatewayError naming the line `number`."""
        key: bytes | None = None
        value: bytes | None = line
        if self.separator is not None:
            key, found, value = line.partition(self.separator)
            if not found:
                raise GatewayError(f"line {number}: no key separator {self.separator!r} in it")
        elif self.key is not None and line:
            key = self._extract_json_key(line, number)
        if self.null_empty and not value:
            value = None
        return key, value

    def _extract_json_key(self, line: bytes, number: int) -> bytes | None:
        assert self.key is not None
        try:
            return _encode_key(_resolve_pointer(orjson.loads(line), self.key))
        except orjson.JSONDecodeError as exc:
            raise GatewayError(f"line {number}: not JSON ({exc}); --key needs JSON lines") from exc
        except (LookupError, TypeError, ValueError) as exc:
            raise GatewayError(f"line {number}: nothing at {self.key!r} for a key") from exc


def _resolve_pointer(document: Any, pointer: str) -> Any:
    """What the field or pointer names; LookupError, TypeError or ValueError if nothing."""
    if not pointer.startswith("/"):
        return document[pointer]
    for part in pointer[1:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


def _encode_key(value: Any) -> bytes | None:
    """Text as it is; null is no key; anything else as JSON."""
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case _:
            return orjson.dumps(value)


@dataclass(slots=True)
class ValueDigest:
    """SHA-256 of values, for two kinds of receiver. A tombstone counts as an empty value.

    ordered:   of all values, each followed by LF: what `sha256sum` says of a file of lines.
    unordered: the sum of each value's own SHA-256 modulo 2^256: whatever order they came in,
               as from several partitions.
    """

    _all: Any = field(default_factory=hashlib.sha256)
    _sum: int = 0

    def add(self, value: bytes | None) -> None:
        data = value or b""
        self._all.update(data + b"\n")
        self._sum += int.from_bytes(hashlib.sha256(data).digest())

    @property
    def ordered(self) -> str:
        return str(self._all.hexdigest())

    @property
    def unordered(self) -> str:
        return f"{self._sum % (1 << 256):064x}"


async def iter_line_chunks(source: BinaryIO) -> AsyncGenerator[list[bytes], None]:
    """Whole lines as they come, without their LF; a last one may lack it.

    Read in a thread that dies with the process: a read of a terminal cannot be called off.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[list[bytes] | BaseException | None] = asyncio.Queue()
    room = Semaphore(2)  # chunks read ahead
    wanted = Event()
    wanted.set()

    def give(item: list[bytes] | BaseException | None) -> None:
        room.acquire()
        if not wanted.is_set():
            raise BrokenPipeError
        loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        with suppress(BrokenPipeError, RuntimeError):  # nobody listens, or the loop has ended
            try:
                _read_lines(source, give)
                give(None)
            except (OSError, ValueError) as exc:
                give(GatewayError(f"the input cannot be read: {exc}"))

    Thread(target=read, name="produce-input", daemon=True).start()
    try:
        while (item := await queue.get()) is not None:
            room.release()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        wanted.clear()
        room.release(2)


def _read_lines(source: BinaryIO, emit: Callable[[list[bytes]], None]) -> None:
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    rest: list[bytes] = []
    while data := read(CHUNK_BYTES):
        head, *tail = data.split(b"\n")
        rest.append(head)
        if tail:
            last = tail.pop()
            emit([b"".join(rest), *tail])
            rest = [last]
    if final := b"".join(rest):
        emit([final])
