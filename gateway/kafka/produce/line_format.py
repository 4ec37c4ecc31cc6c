"""Read lines of input, turn each into key and value, and compute digests of the values."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Event, Semaphore, Thread
from typing import Any, BinaryIO

import orjson

from gateway.core.channel.filters import MISSING, Path, parse_pointer, resolve_path
from gateway.errors import GatewayError

CHUNK_BYTES = 1 << 20  # read at once; with 12 partitions that is a batch of about 85 KB for each


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line becomes a record. By default its bytes without the LF are the value.

    Attributes:
        key: The field of a JSON line that holds the key: its name, or a JSON pointer (RFC 6901)
            such as /customer/id. The value is still the whole line.
        separator: The bytes between key and value in a line. Excludes `key`.
        null_empty: Write an empty value as a tombstone.
    """

    key: str | None = None
    separator: bytes | None = None
    null_empty: bool = False

    def __post_init__(self) -> None:
        if self.key is not None and self.separator is not None:
            raise ValueError("a key is either a field of JSON or stands before a separator")

    def parse_line(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None]:
        """Return key and value of a line without its LF; GatewayError names the number."""
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
            key = resolve_path(orjson.loads(line), _parse_key_path(self.key))
        except orjson.JSONDecodeError as exc:
            raise GatewayError(f"line {number}: not JSON ({exc}); --key needs JSON lines") from exc
        except ValueError:  # no pointer
            key = MISSING
        if key is MISSING:
            raise GatewayError(f"line {number}: nothing at {self.key!r} for a key")
        return _encode_key(key)


@lru_cache(1)  # it is the same for all lines
def _parse_key_path(key: str) -> Path:
    """Return the path of a field name or JSON pointer (RFC 6901)."""
    return parse_pointer(key) if key.startswith("/") else (key,)


def _encode_key(value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case _:
            return orjson.dumps(value)


@dataclass(slots=True)
class ValueDigest:
    """SHA-256 digests of values, for receivers to compare. A tombstone counts as an empty value."""

    _all: Any = field(default_factory=hashlib.sha256)
    _sum: int = 0

    def add(self, value: bytes | None) -> None:
        data = value or b""
        self._all.update(data + b"\n")
        self._sum += int.from_bytes(hashlib.sha256(data).digest())

    @property
    def ordered_digest(self) -> str:
        """Return the digest of all values, each followed by LF, as `sha256sum` prints it."""
        return str(self._all.hexdigest())

    @property
    def unordered_digest(self) -> str:
        """Return the sum of all digests modulo 2^256: the same for any order of partitions."""
        return f"{self._sum % (1 << 256):064x}"


async def iter_line_chunks(
    source: BinaryIO, *, chunk_bytes: int = CHUNK_BYTES
) -> AsyncGenerator[list[bytes], None]:
    """Yield the lines of each chunk that is read, as it comes, without their LF.

    The last line need not end in LF. The source is read in a daemon thread, because a read from a
    terminal cannot be cancelled: the thread ends with the process. Raises GatewayError if the input
    cannot be read.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[list[bytes] | BaseException | None] = asyncio.Queue()
    chunks_allowed = Semaphore(2)  # how many chunks the thread may read ahead
    is_open = Event()
    is_open.set()

    def emit(item: list[bytes] | BaseException | None) -> None:
        chunks_allowed.acquire()
        if not is_open.is_set():
            raise BrokenPipeError  # ends `_read_lines`
        loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        # BrokenPipeError: the iterator was closed. RuntimeError: the event loop was.
        with suppress(BrokenPipeError, RuntimeError):
            try:
                _read_lines(source, chunk_bytes, emit)
                emit(None)
            except (OSError, ValueError) as exc:
                emit(GatewayError(f"the input cannot be read: {exc}"))

    Thread(target=read, name="produce-input", daemon=True).start()
    try:
        while (item := await queue.get()) is not None:
            chunks_allowed.release()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        # Release the thread if it waits, so that it sees that nobody reads any more.
        is_open.clear()
        chunks_allowed.release(2)


def _read_lines(source: BinaryIO, chunk_bytes: int, emit: Callable[[list[bytes]], None]) -> None:
    # `read1` returns what is there; `read` would wait until the whole chunk is filled.
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    rest: list[bytes] = []  # the parts of a line whose end was not read yet
    while data := read(chunk_bytes):
        head, *tail = data.split(b"\n")
        rest.append(head)
        if tail:
            last = tail.pop()
            emit([b"".join(rest), *tail])
            rest = [last]
    if final := b"".join(rest):
        emit([final])
