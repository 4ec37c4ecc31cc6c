"""Read one page of a stream: the answer of a long poll, complete with its position.

A page is due as soon as there is something to show, but not before what is there has been gathered:
records that have to be fetched from Kafka arrive partition by partition. A partition that does not
answer delays no page; its records are in the next one, or a later one.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.client.end_reason import EndReason
from gateway.core.client.subscription import Subscription
from gateway.errors import KafkaError
from gateway.hub.fanout.client import Client
from gateway.hub.wires.ndjson import HEARTBEAT, NdjsonWire

MAX_PAGE_RECORDS = 1000
MAX_PAGE_BYTES = 1 << 20
# Seconds from the first line on that a page waits for partitions that have not answered yet.
GATHER_TIMEOUT_S = 0.05
SETTLE_TIMEOUT_S = 1.0
# Seconds between looks at whether they have answered: the first, and the last after doublings.
POLL_INTERVALS_S = (0.001, 0.016)


class Page(NamedTuple):
    """Hold one page.

    Attributes:
        body: The lines.
        position: The resume token to go on from.
        reason: Why the page ended.
    """

    body: bytes
    position: bytes
    reason: EndReason


@dataclass(slots=True)
class _PageBuffer:
    """Gather the lines of a page.

    Attributes:
        wire: The wire of the lines.
        pieces: What was gathered.
        size: The bytes of it.
        first_line_at: When the first line arrived that makes the page worth sending, by the loop's
            clock; None if there is none yet.
    """

    wire: NdjsonWire
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    first_line_at: float | None = None

    def add(self, piece: bytes) -> None:
        """Append lines."""
        self.pieces.append(piece)
        self.size += len(piece)
        if self.first_line_at is None and self.wire.has_content(piece):
            self.first_line_at = asyncio.get_running_loop().time()


async def read_page(
    client: Client,
    wire: NdjsonWire,
    wait: float,
    *,
    max_bytes: int = MAX_PAGE_BYTES,
    settle_timeout_s: float = SETTLE_TIMEOUT_S,
) -> Page:
    """Return the next page of a client, whose credit is the length of the page in records.

    Args:
        client: A client that has not begun; it is ended, and the caller closes it.
        wire: The wire of the client.
        wait: Seconds to wait for something to show. Whatever it is, partitions have time to
            answer, and BEGIN waits for the first of them as it does for a stream.
        max_bytes: Bytes after which the page ends.
        settle_timeout_s: Seconds for the partitions to answer, also if `wait` is 0.

    Raises:
        KafkaError: There is nothing to show, and no partition can be read.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + wait
    await client.wait_until_ready()
    page, is_unreadable = _PageBuffer(wire), _is_unreadable(client.subscription)
    pull = client.pull()
    page.add(pull.begin())
    if is_unreadable:
        deadline = 0.0
    await _fill_page(client, page, deadline, max(deadline, now() + settle_timeout_s), max_bytes)
    if is_unreadable and page.first_line_at is None:
        raise KafkaError("no partition can be read for now; ask again")
    client.end(EndReason.WAIT)
    page.add(await pull.next_bytes() or b"")
    subscription = client.subscription
    return Page(
        b"".join(page.pieces), subscription.token, subscription.end_reason or EndReason.WAIT
    )


async def _fill_page(
    client: Client, page: _PageBuffer, deadline: float, last_due_at: float, max_bytes: int
) -> None:
    """Read lines until the page is due.

    Args:
        client: The client, which has begun.
        page: Where the lines go.
        deadline: Until when to wait for something to show, by the loop's clock.
        last_due_at: When the page without a line is due at the latest, by the loop's clock.
        max_bytes: Bytes after which the page ends.
    """
    now, subscription = asyncio.get_running_loop().time, client.subscription
    interval = POLL_INTERVALS_S[0]
    while page.size < max_bytes and subscription.credit and not subscription.end_reason:
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
                client, deadline if not has_lines and at < deadline else min(due_at, at + interval)
            )
        )
        interval = min(2 * interval, POLL_INTERVALS_S[1])


def _is_unreadable(subscription: Subscription) -> bool:
    """Return whether no partition can be read."""
    readiness = subscription.channel.tail.readiness
    return len(readiness.list_pending()) == len(readiness.partitions)


async def _next_lines(client: Client, until: float) -> bytes:
    """Return what arrives until a time; empty if that is nothing or a heartbeat."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            piece = await client.pull().next_bytes()
            return b"" if piece is None or piece == HEARTBEAT else piece
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
