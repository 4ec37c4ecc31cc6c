"""Account for the bytes that a process holds for its clients, towards `memory`.

Holders say so when they begin to hold bytes that a client has sent or has not taken yet, not when
somebody looks: 150 clients that read nothing were written 450 MiB between two looks of a timer.
When all hold more than the limit, those with most let go, which disconnects most of them. A client
that keeps up holds nothing, and is in no account.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from enum import StrEnum
from time import monotonic
from typing import Protocol

from gateway.errors import MemoryFull

log = logging.getLogger(__name__)

# Of the limit: what may be in use before more is refused, and what others are made to leave. Both
# are below it, so that not every further byte makes somebody let go.
CAPACITY_FACTOR, SPARED_FACTOR = 0.875, 0.75
RESERVED_FACTOR = 0.5  # of the limit: what one part may have that nobody can let go of
REFUSAL_INTERVAL_S = 1.0  # seconds after some let go in which they do not for those refused
MAX_UNCOUNTED_BYTES = 4096  # of requests, messages or responses of one connection
QUIET_PERIOD_S = 60.0  # seconds without a disconnect after which the next one is logged again


class HeldPart(StrEnum):
    """The use of held bytes, which is the label `part` of metrics."""

    UNSENT = "unsent"  # written to a connection that has not taken them
    RECEIVED = "received"  # of messages and requests that are incomplete, or being processed
    PARSED = "parsed"  # of parsed bodies, while their requests need them
    RESPONSES = "responses"  # of responses that are being put together
    FETCHED = "fetched"  # of consumers: records fetched ahead of their clients, and partitions
    REPLIES = "replies"  # of services, for requests that ask later


class Holder(Protocol):
    """A holder of bytes for clients: in most cases a connection."""

    def release_memory(self) -> None:
        """Let go of the bytes, if need be by disconnecting the client."""


class _SharedBytes:
    """Bytes that several holders refer to, and that count once."""

    __slots__ = ("data", "holder_count")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.holder_count = 0


class _Holding:
    """The bytes that one holder has of one part."""

    __slots__ = ("shared", "size")

    def __init__(self) -> None:
        self.size = 0
        self.shared: _SharedBytes | None = None

    @property
    def share(self) -> float:
        """Return its bytes, and as much of the shared ones as is freed with it on average."""
        shared = self.shared
        return self.size + (0 if shared is None else len(shared.data) / shared.holder_count)


class ClientMemory:
    """The bytes that a process holds for its clients, by holder and part.

    `Hubs` has one. Holders must release what they hold, at the latest when they are closed.
    `releases` counts the holders that were made to let go.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self.limit = limit
        self.total = 0
        self.by_part: dict[str, int] = {part: 0 for part in HeldPart}
        self.releases: Counter[HeldPart] = Counter()
        self._reserved = dict.fromkeys(HeldPart, 0.0)  # as `reserve` counts it
        self._reserved_by: dict[tuple[HeldPart, str], float] = {}  # of that, by identity
        self._holdings: dict[tuple[HeldPart, Holder], _Holding] = {}
        self._shared: dict[int, _SharedBytes] = {}  # by the id of the bytes
        self._is_limiting = False  # `_limit_holders` is scheduled
        self._limited_at = -math.inf

    def has_capacity(self, size: int) -> bool:
        """Return whether there is memory for `size` more bytes, which may be refused.

        If not, those with most let go, so that a client that is refused may come again. They do
        so at most once per `REFUSAL_INTERVAL_S`: otherwise as many would come as are refused.
        """
        if self.total + size <= self.limit * CAPACITY_FACTOR:
            return True
        if monotonic() - self._limited_at > REFUSAL_INTERVAL_S:
            self._schedule_limiting()
        return False

    def hold(self, part: HeldPart, holder: Holder, size: int, shared: bytes | None = None) -> None:
        """Set the bytes that a holder has of a part, in place of those before.

        `shared` are bytes besides, which count once for all that hold the same object.
        """
        holding = self._holdings.get((part, holder))
        if holding is None:
            holding = self._holdings[part, holder] = _Holding()
        self._count(part, size - holding.size)
        holding.size = size
        if holding.shared is None or holding.shared.data is not shared:
            self._drop_shared(part, holding)
            if shared is not None:
                self._add_shared(part, holding, shared)
        if self.total > self.limit:
            self._schedule_limiting()

    def hold_if_large(
        self, part: HeldPart, holder: Holder, size: int, shared: bytes | None = None
    ) -> None:
        """Set the bytes that a holder has of a part, as `hold`; a few count as none."""
        if size + len(shared or b"") > MAX_UNCOUNTED_BYTES:
            self.hold(part, holder, size, shared)
        else:
            self.release(part, holder)

    @contextmanager
    def reserve(
        self, part: HeldPart, size: int, identity: str = "", *, is_growth: bool = False
    ) -> Iterator[None]:
        """Count bytes of a request that nobody can let go of, also if its client is disconnected.

        It gets at most half of what is left to its part, so that large requests leave room for
        small ones, and otherwise raises MemoryFull. The only request may have any size.

        Args:
            identity: A client that keeps the bytes as long as it likes: with all that it has, it
                leaves as much to others. Those without an identity are not distinguished.
            is_growth: Whether this is more of what was admitted, which others do not keep from
                growing: it is refused only where its client alone has half of the part.
        """
        limit = self.limit * RESERVED_FACTOR
        counted = min(size, limit / 2)
        own = self._reserved_by.get((part, identity), 0.0) if identity else 0.0
        if not is_growth:
            is_refused = own + 2 * counted > limit - self._reserved[part]
        elif identity:
            is_refused = own + counted > limit / 2
        else:
            is_refused = self._reserved[part] + counted > limit
        if is_refused:
            raise MemoryFull
        self._reserved[part] += counted
        if identity:
            self._reserved_by[part, identity] = own + counted
        self._count(part, size)
        if self.total > self.limit:
            self._schedule_limiting()
        try:
            yield
        finally:
            self._reserved[part] -= counted
            if identity:
                self._reserved_by[part, identity] -= counted
                if not self._reserved_by[part, identity]:
                    del self._reserved_by[part, identity]
            self._count(part, -size)

    def hold_unsent(self, holder: Holder, waiting: int, copied: int, data: bytes | None) -> None:
        """Set the bytes that wait for a connection, after a write that it has not taken whole.

        Args:
            waiting: How many bytes wait.
            copied: How many of them are copies of what was written.
            data: The bytes of the last write; None if they are not known.
        """
        size, shared = waiting, None
        if data is not None and copied < waiting:
            holding = self._holdings.get((HeldPart.UNSENT, holder))
            if waiting - copied <= len(data):
                size, shared = copied, data
            elif holding is not None and holding.shared is not None:
                # An event of its own behind the shared one, which is sent first.
                own_size = holding.size + len(data)
                if own_size < waiting:
                    size, shared = own_size, holding.shared.data
        self.hold(HeldPart.UNSENT, holder, size, shared)

    def release(self, part: HeldPart, holder: Holder) -> None:
        """Count nothing of a part for a holder any more. It may be called again."""
        holding = self._holdings.pop((part, holder), None)
        if holding is not None:
            self._count(part, -holding.size)
            self._drop_shared(part, holding)

    def _count(self, part: HeldPart, size: int) -> None:
        self.by_part[part] += size
        self.total += size

    def _add_shared(self, part: HeldPart, holding: _Holding, data: bytes) -> None:
        shared = self._shared.get(id(data))
        if shared is None:
            shared = self._shared[id(data)] = _SharedBytes(data)
            self._count(part, len(data))
        shared.holder_count += 1
        holding.shared = shared

    def _drop_shared(self, part: HeldPart, holding: _Holding) -> None:
        shared, holding.shared = holding.shared, None
        if shared is not None:
            shared.holder_count -= 1
            if not shared.holder_count:
                del self._shared[id(shared.data)]
                self._count(part, -len(shared.data))

    def _schedule_limiting(self) -> None:
        """Limit the holders, but not within this call: one may be in the middle of a write."""
        if not self._is_limiting:
            self._is_limiting = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._limit_holders, context=Context())  # its log line is of no client

    def _limit_holders(self) -> None:
        """Make those with most let go; of several with the same, the one that has it longest.

        Responses that are being put together go last, as they are done soon anyway.
        """
        self._is_limiting = False
        count = 0
        holdings = sorted(
            self._holdings.items(),
            key=lambda item: (item[0][0] is not HeldPart.RESPONSES, item[1].share),
            reverse=True,
        )
        for (part, holder), holding in holdings:
            if self.total <= self.limit * SPARED_FACTOR:
                break
            if part is HeldPart.UNSENT and holding.share >= self.total:
                continue  # one record that is larger than the limit gets through
            if (part, holder) in self._holdings:
                self.release(part, holder)
                self.releases[part] += 1
                count += 1
                holder.release_memory()
        now = monotonic()
        if count and now - self._limited_at > QUIET_PERIOD_S:
            log.warning(
                "more than half of memory is held for clients: those with most are disconnected, "
                "or their records fetched again, %d now; logged again after %g s without any",
                count,
                QUIET_PERIOD_S,
            )
        if count:
            self._limited_at = now


class GrowingReservation(ExitStack):
    """Bytes of a request that come one after the other, counted by `reserve` until it is closed.

    The first `size` bytes are there from the beginning; raises MemoryFull.
    """

    def __init__(self, client_memory: ClientMemory, part: HeldPart, size: int = 0) -> None:
        super().__init__()
        self._size = size
        self._client_memory, self._part = client_memory, part
        self._reserved = max(size, MAX_UNCOUNTED_BYTES)
        if size:
            self.enter_context(client_memory.reserve(part, size))

    def grow(self, size: int) -> None:
        """Count `size` more bytes; raises MemoryFull."""
        self._size += size
        if self._size > self._reserved:
            self._reserved = 2 * self._size  # or each byte would be a reservation
            self.close()
            self.enter_context(self._client_memory.reserve(self._part, self._reserved))


def estimate_parsed_bytes(text: bytes) -> int:
    """Return about how many bytes a JSON text and its values take, in at most 25 ms for 1 MB.

    Measured: 230 for an object of one member, up to 190 for each other one, 60 for an array, and in
    arrays 40 for a number, 60 for a string and its text, and 110 for a Decimal.
    """
    size = _count_structure(text)
    if size > 16 * len(text):  # it may be a text of braces, which takes its length
        size = _count_structure(_remove_strings(text))
    return len(text) + size


def _count_structure(text: bytes) -> int:
    braces, brackets, commas, colons = (text.count(each) for each in (b"{", b"[", b",", b":"))
    return 250 * braces + 60 * brackets + 100 * commas + 50 * colons


def _remove_strings(text: bytes) -> bytes:
    without_escapes = text.replace(rb"\\", b"").replace(rb"\"", b"")
    return b"".join(without_escapes.split(b'"')[::2])
