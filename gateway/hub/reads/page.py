"""One page of a stream: what a long poll is answered with, complete, position and all.

It is due as soon as there is something, not before what is there has been gathered: records
that must come from Kafka first come in partition by partition. A partition that says nothing
delays nobody's page, and is in the next one or a later.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.client.subscription import Subscription
from gateway.errors import KafkaError
from gateway.hub.fanout.client import Client
from gateway.hub.wires.ndjson import HEARTBEAT, NdjsonWire

MAX_PAGE_RECORDS = 1000
MAX_PAGE_BYTES = 1 << 20
GATHER_TIMEOUT_S = (
    0.05  # seconds from the first line on, while not all partitions have said what they hold
)
SETTLE_TIMEOUT_S = 1.0  # seconds for them to say it to one who does not want to wait
POLL_INTERVALS_S = (
    0.001,
    0.016,
)  # seconds, doubled, after which it is looked at again whether they have

END_WAITED = "wait"
"""The reason in the last line; of a page that ended for another, that one."""


class Page(NamedTuple):
    """position: the token to go on with; reason: why it ended."""

    body: bytes
    position: bytes
    reason: str


@dataclass(slots=True)
class _PageBuffer:
    """What was gathered. since: when the first line came that is worth a page."""

    wire: NdjsonWire
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    first_line_at: float | None = None

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)
        if self.first_line_at is None and self.wire.has_content(piece):
            self.first_line_at = asyncio.get_running_loop().time()


async def read_page(client: Client, wire: NdjsonWire, wait: float) -> Page:
    """The next page of a client whose credit is its length in records.

    wait: seconds for something to come. Partitions have a second to say what they hold, also
          with less of it, and BEGIN waits for the first of them as it does for a stream.
    Raises KafkaError if there is nothing, and no partition that could be read.
    """
    due = asyncio.get_running_loop().time() + wait
    await client.wait_until_ready()
    lines, away = _PageBuffer(wire), _is_unreadable(client.subscription)
    lines.add(client.begin())
    await _fill_page(client, lines, 0.0 if away else due)
    if away and lines.first_line_at is None:
        raise KafkaError("no partition can be read for now; ask again")
    client.end(END_WAITED)
    lines.add(await client.next_bytes() or b"")
    subscription = client.subscription
    return Page(b"".join(lines.pieces), subscription.token, subscription.end_reason or END_WAITED)


async def _fill_page(client: Client, page: _PageBuffer, deadline: float) -> None:
    """due: the time of the loop until which something is waited for."""
    now, subscription = asyncio.get_running_loop().time, client.subscription
    ends, pause = max(deadline, now() + SETTLE_TIMEOUT_S), POLL_INTERVALS_S[0]
    while page.size < MAX_PAGE_BYTES and subscription.credit and not subscription.end_reason:
        at, settled, told = now(), _is_settled(subscription), page.first_line_at is not None
        by = ends if page.first_line_at is None else page.first_line_at + GATHER_TIMEOUT_S
        if at >= by or (settled and (told or at >= deadline)):
            return
        page.add(
            await _next_lines(
                client, deadline if not told and at < deadline else min(by, at + pause)
            )
        )
        pause = min(2 * pause, POLL_INTERVALS_S[1])


def _is_unreadable(subscription: Subscription) -> bool:
    """Is there no partition that can be read?"""
    readiness = subscription.channel.tail.readiness
    return len(readiness.list_pending()) == len(readiness.partitions)


async def _next_lines(client: Client, until: float) -> bytes:
    """What comes by then; of heartbeats a page has none."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            piece = await client.next_bytes()
            return b"" if piece is None or piece == HEARTBEAT else piece
    return b""


def _is_settled(subscription: Subscription) -> bool:
    """Does it have all that its partitions hold, as far as they have said it?"""
    logs = subscription.channel.tail.logs
    if subscription.next_seq < subscription.channel.next_seq:
        return False
    for tp, place in subscription.private_positions.items():
        log = logs.get(tp)
        if log is None or log.next_offset is None or place.offset is None:
            return False
        if place.lineage != log.lineage or place.offset < log.next_offset:
            return False
    return True
