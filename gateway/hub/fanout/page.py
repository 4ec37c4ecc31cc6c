"""Read one page of a stream: the answer of a long poll, complete with its position.

A page is due as soon as there is something to show, but not before the records at hand are
gathered: those fetched from Kafka arrive partition by partition. A partition that does not answer
delays no page; its records are in a later one.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from gateway.client_memory import ClientMemory, HeldPart
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason
from gateway.errors import KafkaError, MemoryFull
from gateway.hub.wires.ndjson import HEARTBEAT, NdjsonWire

from .client import Client, Handover
from .pulled_bytes import PulledBytes

MAX_PAGE_RECORDS = 1000
MAX_PAGE_BYTES = 1 << 20
# Seconds from the first line on that a page waits for partitions that have not answered yet.
GATHER_TIMEOUT_S = 0.05
SETTLE_TIMEOUT_S = 1.0
# Seconds between looks at whether they have answered: the first, and the last after doublings.
POLL_INTERVALS_S = (0.001, 0.016)


class Page(NamedTuple):
    """A page; its `position` is the resume token to go on from, and `start` is before it."""

    body: bytes
    position: bytes
    reason: EndReason
    start: Handover | None = None


@dataclass(slots=True, eq=False)
class PageBuffer:
    """Gather the lines of a page, whose bytes count until the connection has them.

    `first_line_at` is when the first line arrived that makes the page worth sending, by the loop's
    clock. `is_dropped` says that the page was dropped to free memory.
    """

    wire: NdjsonWire
    client_memory: ClientMemory
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    first_line_at: float | None = None
    is_dropped: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client_memory.release(HeldPart.RESPONSES, self)

    def release_memory(self) -> None:
        """Drop the page; its client is refused. See `Holder`."""
        self.pieces.clear()
        self.is_dropped = True

    def join(self) -> bytes:
        """Return all lines; MemoryFull if the page was dropped."""
        if self.is_dropped:
            raise MemoryFull
        body = b"".join(self.pieces)
        self.pieces.clear()
        return body

    def add(self, piece: bytes) -> None:
        """Append lines, unless the page was dropped, or there is no memory for them."""
        if not self.client_memory.has_capacity(len(piece)):
            self.release_memory()
        if self.is_dropped or piece in (b"", HEARTBEAT):
            return
        self.pieces.append(piece)
        self.size += len(piece)
        self.client_memory.hold(HeldPart.RESPONSES, self, self.size)
        if self.first_line_at is None and self.wire.has_content(piece):
            self.first_line_at = asyncio.get_running_loop().time()


async def read_page(
    client: Client,
    page: PageBuffer,
    wait: float,
    *,
    max_bytes: int = MAX_PAGE_BYTES,
    settle_timeout_s: float = SETTLE_TIMEOUT_S,
) -> Page:
    """Return the next page of a client, whose credit is the length of the page in records.

    Args:
        client: A client that has not begun; it is ended, and the caller closes it.
        wait: Seconds to wait for something to show. Whatever it is, partitions have time to
            answer, and BEGIN waits for the first of them as it does for a stream.
        max_bytes: Bytes after which the page ends.
        settle_timeout_s: Seconds for the partitions to answer, also if `wait` is 0.

    Raises:
        KafkaError: There is nothing to show, and no partition can be read.
        MemoryFull: The page was dropped, as too much is held for clients.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + wait
    client.hub.own_clients.add(client)  # no stream sees to it when its topics are read anew
    await client.wait_until_ready()
    # The tail of a client that a reload has ended is fed no more, so it says nothing.
    is_unreadable = not client.subscription.end_reason and _is_unreadable(client.subscription)
    page.add(client.begin())
    start = client.build_handover()
    pulled = client.pull()
    if is_unreadable:
        deadline = 0.0
    last_due_at = max(deadline, now() + settle_timeout_s)
    await _fill_page(client.subscription, pulled, page, deadline, last_due_at, max_bytes)
    if is_unreadable and page.first_line_at is None:
        raise KafkaError("no partition can be read for now; ask again")
    client.end(EndReason.WAIT)
    async for piece in pulled:
        page.add(piece)
    reason = client.subscription.end_reason or EndReason.WAIT
    return Page(page.join(), pulled.end_position, reason, start)


async def _fill_page(
    subscription: Subscription,
    pulled: PulledBytes,
    page: PageBuffer,
    deadline: float,
    last_due_at: float,
    max_bytes: int,
) -> None:
    """Read lines until the page is due: at `last_due_at` at the latest, by the loop's clock."""
    now = asyncio.get_running_loop().time
    interval = POLL_INTERVALS_S[0]
    while (
        page.size < max_bytes
        and subscription.credit
        and not (subscription.end_reason or page.is_dropped)
    ):
        at, settled, has_lines = now(), _is_settled(subscription), page.first_line_at is not None
        due_at = (
            last_due_at if page.first_line_at is None else page.first_line_at + GATHER_TIMEOUT_S
        )
        if at >= due_at or (settled and (has_lines or at >= deadline)):
            return
        # Nothing wakes this task when a partition turns out to hold nothing, so it polls for that,
        # unless it waits for a first line anyway.
        page.add(
            await _next_lines(
                pulled, deadline if not has_lines and at < deadline else min(due_at, at + interval)
            )
        )
        interval = min(2 * interval, POLL_INTERVALS_S[1])


def _is_unreadable(subscription: Subscription) -> bool:
    readiness = subscription.channel.tail.readiness
    return len(readiness.list_pending()) == len(readiness.partitions)


async def _next_lines(pulled: PulledBytes, until: float) -> bytes:
    """Return the next piece that arrives before a time; empty for none."""
    with contextlib.suppress(TimeoutError, StopAsyncIteration):
        async with asyncio.timeout_at(until):
            return await anext(pulled)
    return b""


def _is_settled(subscription: Subscription) -> bool:
    """Return whether the client has all that its partitions hold, as far as they have answered."""
    logs = subscription.channel.tail.logs
    if subscription.next_seq < subscription.channel.next_seq:
        return False
    for tp, position in subscription.private_positions.items():
        log = logs.get(tp)
        if log is None or log.next_offset is None or position.offset is None:
            return False
        if position.lineage != log.lineage or position.offset < log.next_offset:
            return False
    return True
