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
from gateway.hub.wires.lines import HEARTBEAT, Ndjson

RECORDS = 1000
BYTES = 1 << 20
GATHER = 0.05  # seconds from the first line on, while not all partitions have said what they hold
SETTLE = 1.0  # seconds for them to say it to one who does not want to wait
SLICES = (0.001, 0.016)  # seconds, doubled, after which it is looked at again whether they have

WAITED = "wait"
"""The reason in the last line; of a page that ended for another, that one."""


class Page(NamedTuple):
    """position: the token to go on with; reason: why it ended."""

    body: bytes
    position: bytes
    reason: str


@dataclass(slots=True)
class _Lines:
    """What was gathered. since: when the first line came that is worth a page."""

    wire: Ndjson
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    since: float | None = None

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)
        if self.since is None and self.wire.tells(piece):
            self.since = asyncio.get_running_loop().time()


async def read(client: Client, wire: Ndjson, wait: float) -> Page:
    """The next page of a client whose credit is its length in records.

    wait: seconds for something to come. Partitions have a second to say what they hold, also
          with less of it, and BEGIN waits for the first of them as it does for a stream.
    Raises KafkaError if there is nothing, and no partition that could be read.
    """
    due = asyncio.get_running_loop().time() + wait
    await client.ready()
    lines, away = _Lines(wire), _is_away(client.subscription)
    lines.add(client.begin())
    await _gather(client, lines, 0.0 if away else due)
    if away and lines.since is None:
        raise KafkaError("no partition can be read for now; ask again")
    client.end(WAITED)
    lines.add(await client.next() or b"")
    subscription = client.subscription
    return Page(b"".join(lines.pieces), subscription.position, subscription.ended or WAITED)


async def _gather(client: Client, lines: _Lines, due: float) -> None:
    """due: the time of the loop until which something is waited for."""
    now, subscription = asyncio.get_running_loop().time, client.subscription
    ends, pause = max(due, now() + SETTLE), SLICES[0]
    while lines.size < BYTES and subscription.credit and not subscription.ended:
        at, settled, told = now(), _settled(subscription), lines.since is not None
        by = ends if lines.since is None else lines.since + GATHER
        if at >= by or (settled and (told or at >= due)):
            return
        lines.add(await _next(client, due if not told and at < due else min(by, at + pause)))
        pause = min(2 * pause, SLICES[1])


def _is_away(subscription: Subscription) -> bool:
    """Is there no partition that can be read?"""
    readiness = subscription.channel.tail.readiness
    return len(readiness.pending()) == len(readiness.partitions)


async def _next(client: Client, until: float) -> bytes:
    """What comes by then; of heartbeats a page has none."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            piece = await client.next()
            return b"" if piece is None or piece == HEARTBEAT else piece
    return b""


def _settled(subscription: Subscription) -> bool:
    """Does it have all that its partitions hold, as far as they have said it?"""
    logs = subscription.channel.tail.logs
    if subscription.cursor < subscription.channel.head:
        return False
    for tp, place in subscription.own.items():
        log = logs.get(tp)
        if log is None or log.next is None or place.offset is None:
            return False
        if place.lineage != log.lineage or place.offset < log.next:
            return False
    return True
