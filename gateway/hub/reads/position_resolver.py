"""Turn a resume token, or another start, into the position of a client.

A token grants nothing and is never trusted blindly (`TokenVerifier`): its cluster must be ours and
its topics those of the view, and each position is verified against the log before it is used
(`Backfill`). Kafka is asked for the offsets of starts and ends by time before a client begins.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from gateway.core.channel.tail import Tail
from gateway.core.client.terms import ClientKey, PartitionPredicate
from gateway.core.log.partition_reader import EARLIEST, LATEST, TimestampStart
from gateway.core.log.record import (
    NO_EPOCH,
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    Position,
    TopicPartition,
)
from gateway.core.token.resume_token import ResumeToken, digest_text
from gateway.core.token.token_parser import TokenTopic
from gateway.errors import KafkaError, TokenForeign
from gateway.kafka.client.offsets import OffsetAndTimestamp

if TYPE_CHECKING:
    from .backfill_reader import BackfillReader
    from .leader_queries import LeaderLookups


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a client wants to begin and end.

    Attributes:
        token: The resume token; it takes precedence over `origin`.
        origin: `live`, `earliest`, or a time in milliseconds since 1970.
        until: `latest`, or a time in milliseconds since 1970; None for no end.
        credit: The number of records that may be sent before more are granted; None for any number.
        snapshot: Send the latest record of each key first: of the whole topic, or of what was
            missed since the token.
        max_age: Seconds that the route lets the client go back; None for any number.
    """

    token: ResumeToken | None = None
    origin: Literal["live", "earliest"] | int = "live"
    until: Literal["latest"] | int | None = None
    max_records: int | None = None
    credit: int | None = None
    snapshot: bool = False
    max_age: float | None = None

    @property
    def since(self) -> TimestampStart | None:
        """Return `origin` as a start by time; None if the client resumes or begins live."""
        if self.token is None and self.snapshot:
            return TimestampStart(EARLIEST)
        if self.token is not None or self.origin == "live":
            return None
        return TimestampStart(EARLIEST if self.origin == "earliest" else self.origin)


def check_token(
    token: ResumeToken, cluster: str, topics: Iterable[str] | Mapping[str, str]
) -> dict[str, TokenTopic]:
    """Return the topics of a token that are among those of the client, by name.

    Raises:
        TokenForeign: It is of another cluster or of other topics, or it is not clear of which
            topics.
    """
    # Either side may not have known the id of its cluster.
    if token.cluster not in (digest_text(cluster), digest_text("")) and cluster:
        raise TokenForeign(
            "the resume token is of another cluster; connect without Last-Event-ID or with ?from="
        )
    matched = token.match_topics(topics)
    if not matched:
        raise TokenForeign(
            f"the resume token belongs to another stream (here: {', '.join(topics)}); "
            "connect without Last-Event-ID or with ?from="
        )
    return matched


def build_position(token: ResumeToken, tail: Tail) -> Position:
    """Return what a token says of each partition, unverified.

    Positions of an earlier topic of the same name have the epoch `RETIRED_EPOCH`. Partitions of the
    token's topics that it does not mention were added after it was issued: they start at 0. Topics
    that it does not mention were added to the route: they start with the tail. Partitions that only
    the token knows keep their positions until metadata knows them, too (`TokenVerifier`).
    """
    token_topics = token.match_topics(tail.topic_ids)
    position: Position = {}
    for name, topic in token_topics.items():
        position |= _build_topic_position(name, topic, topic.matches_id(tail.topic_ids[name]))
    for tp in tail.logs:
        if tp not in position and tp.topic in token_topics:
            position[tp] = PartitionPosition(0, NO_EPOCH, UNVERIFIED_LINEAGE)
    return position


@lru_cache(32)  # after a deploy thousands come back from one position: 15 us each
def _build_topic_position(
    name: str, topic: TokenTopic, is_same_topic: bool
) -> Mapping[TopicPartition, PartitionPosition]:
    return {
        TopicPartition(name, partition): PartitionPosition(
            offset, epoch if is_same_topic else RETIRED_EPOCH, UNVERIFIED_LINEAGE
        )
        for partition, (offset, epoch) in enumerate(zip(topic.offsets, topic.epochs, strict=True))
    }


def has_recreated_topic(token: ResumeToken, tail: Tail) -> bool:
    """Return whether the token is of an earlier topic of one of the names."""
    return any(
        not topic.matches_id(tail.topic_ids[name])
        for name, topic in token.match_topics(tail.topic_ids).items()
    )


OTHERS_TIMEOUT_S = 0.25  # seconds that a start by time waits for more partitions than the first
ENDS_TIMEOUT_S = 10.0  # seconds that a client waits for where its partitions end
MAX_LOOKUPS_AT_ONCE = 16  # streams of one client that look up starts or ends


class LookupTurns:
    """Let the streams of one client take turns in looking up starts and ends.

    Each has a task for each partition meanwhile: 1,000 streams of one client at once, of 100
    partitions, took 170 MiB and kept all others waiting for 8 s. A turn ends after `turn_s` at the
    latest: what a partition without a leader delays must not delay streams of other topics.
    """

    def __init__(self, turn_s: float = OTHERS_TIMEOUT_S) -> None:
        self._turn_s = turn_s
        self._turns: WeakValueDictionary[ClientKey, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, client_key: ClientKey) -> AsyncIterator[None]:
        """Wait for a turn of this client; the block may last longer than the turn."""
        turns = self._turns.setdefault(client_key, asyncio.Semaphore(MAX_LOOKUPS_AT_ONCE))
        await turns.acquire()
        with ExitStack() as turn:
            turn.callback(turns.release)
            timer = asyncio.get_running_loop().call_later(self._turn_s, turn.close)
            turn.callback(timer.cancel)
            yield


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
    lineages = tail.lineages

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
    try:
        for return_when, max_wait_s in (  # the first one, then the others
            (asyncio.FIRST_COMPLETED, math.inf),
            (asyncio.ALL_COMPLETED, OTHERS_TIMEOUT_S),
        ):
            if tasks:
                timeout = max(0.0, min(deadline - now(), max_wait_s))
                await asyncio.wait(tasks, timeout=timeout, return_when=return_when)
        return {tp: task.result() for task, tp in tasks.items() if task.done()}
    finally:  # also if the client has left
        for task in tasks:
            task.cancel()
