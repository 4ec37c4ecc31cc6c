"""One page of a stream: what a long poll is answered with, complete, position and all.

It is due as soon as there is something, not before what is there has been gathered: records
that must come from Kafka first come in partition by partition. A partition that says nothing
delays nobody's page, and is in the next one or a later.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

from ..core.subscription import Subscription
from ..errors import KafkaError
from .client import Client
from .lines import HEARTBEAT, Ndjson

RECORDS = 1000
BYTES = 1 << 20
GATHER = 0.05  # seconds from the first line on, while not all partitions have said what they hold
SETTLE = 1.0  # seconds for them to say it to one who does not want to wait
SLICE = 0.01  # seconds after which it is looked at again whether they have

WAITED = "wait"
"""The reason in the last line; of a page that ended for another, that one."""


class Page(NamedTuple):
    """position: the token to go on with; reason: why it ended."""

    body: bytes
    position: bytes
    reason: str


async def read(client: Client, wire: Ndjson, wait: float) -> Page:
    """The next page of a client whose credit is its length in records.

    wait: seconds for something to come. Partitions have a second to say what they hold, also
          with less of it, and BEGIN waits for the first of them as it does for a stream.
    Raises KafkaError if there is nothing, and no partition that could be read.
    """
    now, subscription = asyncio.get_running_loop().time, client.subscription
    await client.ready()
    away = _is_away(subscription)
    due, ends = now() + (0 if away else wait), now() + max(0 if away else wait, SETTLE)
    pieces = [client.begin()]
    told = wire.tells(pieces[0])
    size, by = len(pieces[0]), now() + GATHER if told else ends
    while size < BYTES and subscription.credit and not subscription.ended:
        settled, at = _settled(subscription), now()
        if at >= by or (settled and (told or at >= due)):
            break
        piece = await _next(client, due if not told and at < due else min(by, at + SLICE))
        pieces.append(piece)
        size += len(piece)
        if not told and wire.tells(piece):
            told, by = True, now() + GATHER
    if away and not told:
        raise KafkaError("no partition can be read for now; ask again")
    client.end(WAITED)
    pieces.append(await client.next() or b"")
    return Page(b"".join(pieces), subscription.position, subscription.ended or WAITED)


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
