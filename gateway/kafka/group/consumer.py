"""A consumer as the sidecar needs it: a group's member, or partitions by hand; true long polls.

    consumer = GroupConsumer(cluster, "billing")
    consumer.subscribe(["orders"], listener)
    records = await consumer.poll(5.0)
    await consumer.commit()

What a commit means is what `poll` has *returned*. Membership is our own (`group_member`), by
KIP-848 or the classic protocol; records come by fetches of our own (`prefetch`). No thread is in
either: a thousand consumers of librdkafka in one process are four thousand threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from gateway.core.group.member import State
from gateway.core.group.partition_state import EARLIEST, LATEST, Held
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, NotOwned, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.protocol.group_messages import Committed

from . import protocols
from .assignment import Listener, Tenure
from .prefetch import Appetite, Intake
from .protocols import Protocols

__all__ = ["Committed", "GroupConsumer", "Listener"]

log = logging.getLogger(__name__)

RESETS: Mapping[str, int | None] = {"latest": LATEST, "earliest": EARLIEST, "none": None}
LOCATING = 30.0  # seconds within which a seek by time must know its offset
GRACE = 0.5  # seconds that a poll waits beyond its time for answers that are on their way

Offsets = Mapping[TopicPartition, int | Committed]


class GroupConsumer:
    """One member of one group, or a reader of what it is assigned by hand. Of one event loop.

    Times in seconds. group may be empty for who only reads; such a one cannot commit.

    protocol:           `auto`: KIP-848 where the broker has it, else classic.
    instance_id:        makes it a static member (KIP-345).
    session_timeout, heartbeat_interval: with KIP-848 the broker's word counts; a shorter
                        heartbeat_interval than that makes rebalances faster.
    rebalance_timeout:  that a listener may take to give up what is revoked.
    auto_offset_reset:  where a group that has committed nothing begins: latest, earliest, or none:
                        then `poll` raises PartitionFailed. In a group that has committed anything
                        a new partition is read from its start, and where Kafka does not have the
                        offset to go on from any more, from the first that it has. Without a group
                        it says where to go on from then, too.
    on_gap:             called with a partition, the offset that Kafka does not have, and the one
                        from which it is read instead.
    isolation:          read_committed or read_uncommitted.
    max_partition_bytes: of one fetch of one partition; what is kept of it is bounded by that and
                        half as much again (as it is on the wire; one batch always comes).
    max_fetch_bytes:    of one fetch of one broker.
    prefetch:           the next records are fetched while the caller works on the last.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        *,
        protocol: protocols.Name = "auto",
        instance_id: str | None = None,
        session_timeout: float = 45.0,
        heartbeat_interval: float | None = None,
        rebalance_timeout: float = 60.0,
        auto_offset_reset: Literal["latest", "earliest", "none"] = "latest",
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        max_partition_bytes: int = 1 << 20,
        max_fetch_bytes: int = 16 << 20,
        prefetch: bool = False,
        on_gap: Callable[[TopicPartition, int, int], None] | None = None,
    ) -> None:
        self.group = group
        self._groups = cluster.coordinators.tallies
        self._on_gap = on_gap
        reset = RESETS[auto_offset_reset]
        self._intake = Intake(
            cluster,
            int(isolation == "read_committed"),
            max_partition_bytes,
            reset,
            EARLIEST if group and reset is not None else reset,
            self._tell_gap,
        )
        self._tenure = Tenure(
            cluster,
            group,
            Protocols(
                protocol, instance_id, session_timeout, heartbeat_interval, rebalance_timeout
            ),
            self._intake,
        )
        self._prefetch = prefetch
        self._fetch_bytes = max_fetch_bytes
        self._polling = asyncio.Lock()
        self._told: dict[TopicPartition, KafkaError] = {}
        self._closed = False
        self._turn = 0

    # what to read

    def subscribe(
        self, topics: Collection[str] | re.Pattern[str], listener: Listener | None = None
    ) -> None:
        """Be the group's member for these topics, or all whose whole name the pattern matches.

        Raises ValueError where partitions were assigned by hand.
        """
        self._tenure.join(topics, listener)

    def assign(self, tps: Collection[TopicPartition]) -> None:
        """Read these and no others, as nobody's member; from what is committed, if there is a
        group, else from where `auto_offset_reset` says, or a `seek`.

        Raises ValueError where it is subscribed.
        """
        self._tenure.assign(tps)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What it may read now."""
        return frozenset(self._intake.held)

    @property
    def state(self) -> State:
        """Of the membership; who reads by hand is RUNNING."""
        return self._tenure.state

    # reading

    async def poll(
        self,
        timeout: float,  # noqa: ASYNC109
        *,
        min_bytes: int = 1,
        max_bytes: int = 16 << 20,
        max_records: int = 500,
    ) -> list[Record]:
        """Records, as soon as there are `min_bytes` of them, or those there are after `timeout`.

        The broker waits, for each leader on its own. What is too much is kept for the next poll;
        so is what comes after the caller was cancelled. At least one record comes, however large.
        Raises GroupFailed. AccessDenied and PartitionFailed (no offset to go on from) are of one
        partition, and the others go on: told once, and PartitionFailed again by each poll that has
        nothing else to give. Kafka being away raises nothing: see `Cluster.reachable`.
        """
        async with self._polling:
            now, asked = asyncio.get_running_loop().time, False
            deadline = now() + timeout
            while True:
                self._raise()
                self._intake.news.clear()
                over = asked and now() >= deadline
                late = deadline + GRACE if self._intake.busy else deadline
                if self._enough(min_bytes, max_records) or (over and now() >= late):
                    taken = self._take(max_records, max_bytes)
                    if not taken:
                        self._stand()
                    return taken
                again = late
                if not over:
                    wait, asked = max(0.0, deadline - now()), True
                    again = self._intake.begin(
                        Appetite(wait, min_bytes, min(max_bytes, self._fetch_bytes))
                    )
                    late = deadline + GRACE if self._intake.busy else deadline
                await self._news(min(again, late))

    def at_once(self, *, min_bytes: int, max_bytes: int, max_records: int) -> list[Record] | None:
        """What `poll` would return without waiting; None where it would wait. Raises as `poll`."""
        if self._polling.locked():
            return None
        self._raise()
        if not self._enough(min_bytes, max_records):
            return None
        return self._take(max_records, max_bytes)

    async def _news(self, until: float) -> None:
        """Until something came, or the time has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._intake.news.wait()

    def _enough(self, min_bytes: int, max_records: int) -> bool:
        readable = [held for held in self._intake.held.values() if held.readable]
        if sum(held.size for held in readable) >= max(1, min_bytes):
            return True
        return sum(len(held.kept) for held in readable) >= max_records

    def _take(self, most: int, size: int) -> list[Record]:
        """In turns: another partition is the first each time, so that none is starved."""
        held = [one for one in self._intake.held.values() if one.readable and one.kept]
        taken: list[Record] = []
        if held:
            self._turn += 1
            at = self._turn % len(held)
            for one in held[at:] + held[:at]:
                if len(taken) >= most or size <= 0:
                    break
                before = one.size
                if not taken or before:
                    taken += one.take(most - len(taken), size)
                size -= before - one.size
        if self._prefetch:
            self._intake.begin(Appetite(max_bytes=self._fetch_bytes))
        return taken

    def _raise(self) -> None:
        if self._closed:
            raise KafkaError("the consumer is closed")
        if self._tenure.failure is not None:
            raise self._tenure.failure
        for tp, failure in self._intake.failures.items():
            if self._told.get(tp) is not failure:
                self._told[tp] = failure
                raise failure

    def _stand(self) -> None:
        """Nothing comes: say what needs a seek."""
        for failure in self._intake.failures.values():
            if isinstance(failure, PartitionFailed):
                raise failure

    @property
    def failures(self) -> Mapping[TopicPartition, KafkaError]:
        """Why some partitions are not read now."""
        return self._intake.failures

    def _tell_gap(self, tp: TopicPartition, missing: int, found: int) -> None:
        """Say that Kafka does not have an offset any more, and where it goes on."""
        who = f"group {self.group}: " if self.group else ""
        if found > missing:
            self._groups.missing[self._groups.label_of(self.group)] += found - missing
            log.warning(
                "%s%s has no offset %d any more: %d records are lost to it, it goes on at %d",
                who, tp, missing, found - missing, found,
            )  # fmt: skip
        else:
            log.warning("%s%s has no offset %d; it goes on at %d", who, tp, missing, found)
        if self._on_gap is not None:
            self._on_gap(tp, missing, found)

    # positions

    def position(self, tp: TopicPartition) -> int | None:
        """The offset after what `poll` has returned; None while it is being looked up."""
        return self._held(tp).position

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """The next poll returns records from there on."""
        self._held(tp).seek(offset)
        self._intake.failures.pop(tp, None)
        self._intake.wake()

    async def seek_to_beginning(self, tps: Collection[TopicPartition]) -> None:
        await self._seek(dict.fromkeys(tps, EARLIEST))

    async def seek_to_end(self, tps: Collection[TopicPartition]) -> None:
        """With read_committed: to the last stable offset."""
        await self._seek(dict.fromkeys(tps, LATEST))

    async def seek_to_timestamp(self, timestamps: Mapping[TopicPartition, int]) -> None:
        """To the first record at least as late (milliseconds), or the end where there is none."""
        await self._seek(timestamps)

    async def _seek(self, specs: Mapping[TopicPartition, int]) -> None:
        """Returns when the positions are known. Raises BrokerUnavailable when they cannot be."""
        some = [(self._held(tp), spec) for tp, spec in specs.items()]
        for held, spec in some:
            held.reset(spec)
            self._intake.failures.pop(held.tp, None)
        try:
            async with asyncio.timeout(LOCATING):
                await self._intake.located([held for held, _ in some])
        except TimeoutError:
            message = "the offsets to seek to are not known in time"
            raise BrokerUnavailable(message, timeout=True) from None

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """`poll` returns nothing of them until `resume`; they stay owned."""
        for tp in tps:
            self._held(tp).paused = True

    def resume(self, tps: Collection[TopicPartition]) -> None:
        paused = [held for held in map(self._held, tps) if held.paused]
        for held in paused:
            held.paused = False
        if paused:
            self._intake.wake()

    def _held(self, tp: TopicPartition) -> Held:
        held = self._intake.held.get(tp)
        if held is None:
            raise NotOwned(f"{tp} is not this consumer's (any more); see its assignment")
        return held

    # offsets

    async def commit(self, offsets: Offsets | None = None) -> None:
        """These, or the positions of all that is owned and not committed as it is.

        Raises NotOwned for partitions that are not the member's (any more), when the rest is
        committed; AccessDenied, GroupFailed, BrokerUnavailable (30 s without success).
        """
        wanted = self._positions() if offsets is None else _committed(offsets)
        if not wanted:
            return
        try:
            await self._tenure.commit(wanted)
        except NotOwned:
            if offsets is not None:
                raise  # without offsets: what was lost amid the commit is not the caller's any more

    async def committed(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What the group has committed; absent where nothing is. Raises as `commit`."""
        return await self._tenure.committed(tps)

    def _positions(self) -> dict[TopicPartition, Committed]:
        return {
            tp: Committed(held.position, held.epoch)
            for tp, held in self._intake.held.items()
            if held.position is not None and held.position != held.committed
        }

    async def close(self, leave: bool = True) -> None:
        """The listener's `revoked` is awaited for all that is owned, then the group is left.

        leave: False: the coordinator is told nothing, and waits for the member until its session
               is over. A static member says that it comes back (KIP-848), or nothing (classic).
        """
        if self._closed:
            return
        self._closed = True
        await self._tenure.close(leave)
        await self._intake.close()


def _committed(of: Offsets) -> dict[TopicPartition, Committed]:
    return {tp: one if isinstance(one, Committed) else Committed(one) for tp, one in of.items()}
