"""Ask Kafka for the offsets of starts and ends by time, before a client begins."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from gateway.core.client.terms import ClientKey, PartitionPredicate
from gateway.core.log.partition_reader import LATEST, TimestampStart
from gateway.core.log.record import (
    NO_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    Position,
    TopicPartition,
)
from gateway.core.log.tail import Tail
from gateway.errors import KafkaError
from gateway.kafka.client.offsets import OffsetAndTimestamp

from .backfill_reader import BackfillReader
from .leader_queries import LeaderLookups

OTHERS_TIMEOUT_S = 0.25  # seconds that a start by time waits for more partitions than the first
ENDS_TIMEOUT_S = 10.0  # seconds that a client waits for where its partitions end
MAX_LOOKUPS_AT_ONCE = 16  # streams of one client that look up starts or ends


class LookupTurns:
    """Let the streams of one client take turns in looking up starts and ends.

    Each has a task for each partition meanwhile: 1,000 streams of one client at once, of 100
    partitions, took 170 MiB and kept all others waiting for 8 s. Those with an end wait apart, as
    they may wait for `ENDS_TIMEOUT_S`.
    """

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[tuple[ClientKey, bool], asyncio.Semaphore]
        self._turns = WeakValueDictionary()

    def get(self, client_key: ClientKey, *, has_end: bool) -> asyncio.Semaphore:
        """Return what a stream of this client holds while it looks up."""
        key = client_key, has_end
        turns = self._turns.get(key)
        if turns is None:
            turns = self._turns[key] = asyncio.Semaphore(MAX_LOOKUPS_AT_ONCE)
        return turns


async def resolve_starts(
    backfill_reader: BackfillReader,
    tail: Tail,
    since: TimestampStart,
    deadline: float,
    partition_predicate: PartitionPredicate | None = None,
) -> Position:
    """Return the positions of a start by time, until `deadline` by the loop's clock.

    Partitions that answer soon after the first one have an offset. The others are pending: the
    client looks for their start after it has begun. Partitions that `partition_predicate` excludes
    are left out, so the client is live there at once.
    """
    wanted = [tp for tp in tail.logs if partition_predicate is None or partition_predicate(tp)]
    lineages = {tp: log.lineage for tp, log in tail.logs.items()}

    async def resolve(tp: TopicPartition) -> PartitionPosition:
        return await backfill_reader.resolve_start(tp, since)

    resolved = await _gather_until(((tp, resolve(tp)) for tp in wanted), deadline)
    pending: Position = dict.fromkeys(wanted, PartitionPosition(None, NO_EPOCH, UNVERIFIED_LINEAGE))
    # The lineages as of the call: if a log went back meanwhile, an offset may be of either log, and
    # the older lineage leads to a `gap` that says so.
    return pending | {
        tp: position._replace(lineage=lineages[tp]) for tp, position in resolved.items()
    }


async def fetch_ends(
    lookups: LeaderLookups, tail: Tail, until: object
) -> dict[TopicPartition, int]:
    """Return where partitions end: at a time in milliseconds since 1970, or else as of now.

    Raises:
        KafkaError: A partition did not answer in time.
    """

    async def find_end(tp: TopicPartition) -> tuple[TopicPartition, int]:
        end = await lookups.find_offset(tp, until if isinstance(until, int) else LATEST)
        # -1: no record is as late as the time. The end of the log is where the partition ends then.
        if isinstance(end, OffsetAndTimestamp) and end.offset < 0:
            end = await lookups.find_offset(tp, LATEST)
        if not isinstance(end, OffsetAndTimestamp):
            raise KafkaError(f"{tp} does not say where it ends; try again", retry_after=1.0)
        return tp, end.offset

    try:
        async with asyncio.timeout(ENDS_TIMEOUT_S):
            return dict(await asyncio.gather(*map(find_end, tail.logs)))
    except TimeoutError:
        raise KafkaError(
            "partitions do not say where they end; try again", retry_after=1.0
        ) from None


async def _gather_until(
    work: Iterable[tuple[TopicPartition, Coroutine[Any, Any, PartitionPosition]]], deadline: float
) -> Mapping[TopicPartition, PartitionPosition]:
    """Return the results that are there shortly after the first one, or by the deadline."""
    tasks = {asyncio.create_task(coroutine): tp for tp, coroutine in work}
    now = asyncio.get_running_loop().time
    for return_when, max_wait_s in (  # the first one, then the others
        (asyncio.FIRST_COMPLETED, math.inf),
        (asyncio.ALL_COMPLETED, OTHERS_TIMEOUT_S),
    ):
        if tasks:
            timeout = max(0.0, min(deadline - now(), max_wait_s))
            await asyncio.wait(tasks, timeout=timeout, return_when=return_when)
    late = [task for task in tasks if not task.done()]
    for task in late:
        task.cancel()
    return {tp: task.result() for task, tp in tasks.items() if task.done()}
