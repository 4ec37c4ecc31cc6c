"""Replace one of three members of a consumer group under load: `python -m bench.replacement`.

Six partitions get records evenly. One member ends (it leaves, is killed, or is a static member that
comes back), and a new one takes its place two seconds later; or, as in a rolling update that starts
pods first, the new one joins before the old one leaves, at once or after `minReadySeconds`. It is
noted who read each partition when, and when the state of each member was REBALANCING. A run in
which nobody is replaced shows what the machine adds. Members have the heartbeats of a reactive
group of the sidecar. A killed one is ended without a word to the broker, in the same process.

The result is kept in `bench/results` as JSON, and drawn into `docs/assets/rebalances.svg`; the
table of bench/README.md is printed. Exit status 1: a goal is missed. The goal for REBALANCING is
one for KIP-848: a member of a classic group is in that state, and reads on, until the last member
has heard of the rebalance by its heartbeat. There is none for a member that leaves just when
another one has joined: by KIP-848 the broker makes that wait (`assignment.interval.ms`).
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from support.waiting import wait_until

from gateway.config.sections.sidecar import Group
from gateway.core.group.member import MemberState
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.group.consumer import ConsumerOptions, GroupConsumer
from gateway.kafka.group.consumer_options import ProtocolName

from . import replacement_plot, results
from .group_reader import Arrival, GroupReader, set_group_timeouts
from .kafka import Kafka, RealKafka, real_kafka
from .producer import Producer
from .rebalance import find_longest_silence
from .replacement_result import Replacement

Ending = Literal["none", "leaves", "killed"]
GROUP_TIMEOUT_S = 90.0
ORIGINAL_SILENCE_S = 48.0  # of the blog post that bench/README.md names, with the defaults
HEARTBEAT_INTERVAL_S = float(Group.model_fields["heartbeat_interval"].default)
SILENCE_GOAL_S, REBALANCING_GOAL_S, EXPIRY_GOAL_S = 0.25, 0.1, 1.0
PAUSE_INTERVALS = 3.0  # without a record
PLOT = Path(__file__).parent.parent / "docs" / "assets" / "rebalances.svg"


@dataclass(frozen=True)
class Case:
    """How a member is replaced.

    Attributes:
        protocol: What the group speaks.
        ending: How the old member ends; `none` replaces nobody.
        is_static: Whether members have instance ids.
        ready_s: For how long the new member is ready before the old one ends; None: it joins after
            the old one has ended.
    """

    protocol: ProtocolName
    ending: Ending = "leaves"
    is_static: bool = False
    ready_s: float | None = None

    @property
    def name(self) -> str:
        """Return the case in words."""
        protocol = "KIP-848" if self.protocol == "consumer" else "cooperative"
        if self.ending == "none":
            return f"{protocol}, nobody is replaced"
        kind = "static, comes back" if self.is_static else self.ending
        first = "" if self.ready_s is None else f" {self.ready_s:g} s after the new one is ready"
        return f"{protocol}, {kind}{first}"


CASES = (
    Case("consumer", "none"),
    Case("consumer"),
    Case("consumer", "killed"),
    Case("consumer", is_static=True),
    Case("consumer", ready_s=0.0),
    Case("consumer", ready_s=5.0),
    Case("classic", "none"),
    Case("classic"),
    Case("classic", "killed"),
    Case("classic", is_static=True),
    Case("classic", ready_s=0.0),
    Case("classic", ready_s=5.0),
)


@dataclass(frozen=True)
class Size:
    """How much is run; times in seconds, the rate in records a second to all partitions."""

    cases: Sequence[Case] = CASES
    repeats: int = 3
    partitions: int = 6
    members: int = 3
    rate: float = 240.0
    session_timeout_s: float = 6.0
    quiet_s: float = 1.0
    away_s: float = 2.0

    @property
    def interval_s(self) -> float:
        """Return the time between two records to a partition."""
        return self.partitions / self.rate


async def measure_case(kafka: Kafka, size: Size, case: Case) -> Replacement:
    """Replace a member as the case says."""
    async with AsyncExitStack() as stack:
        group = _Group(kafka, size, case, stack)
        await group.start()
        producer = Producer(kafka.bootstrap_servers)
        async with producer.produce_steadily(group.topic, size.partitions, size.rate):
            await group.wait_for_records(0.0)
            await asyncio.sleep(size.quiet_s)
            return await group.replace_member()


class _Group:
    """The members of one run."""

    def __init__(self, kafka: Kafka, size: Size, case: Case, stack: AsyncExitStack) -> None:
        self.topic = kafka.create_topic(size.partitions)
        self._kafka, self._size, self._case, self._stack = kafka, size, case, stack
        self._name = f"bench-{uuid.uuid4().hex[:8]}"
        self._arrivals: list[Arrival] = []
        self._members: list[GroupReader] = []

    async def start(self) -> None:
        """Start all members, and wait until each has its share."""
        for number in range(self._size.members):
            self._members.append(await self._start_member(number))
        await self._wait_for_shares()

    async def replace_member(self) -> Replacement:
        """Replace the last member, and wait until everything is read evenly again."""
        began, size, case = time.monotonic(), self._size, self._case
        found = Replacement(case.name, size.interval_s)
        old, staying = self._members[-1], self._members[:-1]
        if case.ending == "none":
            await asyncio.sleep(2 * size.away_s)
        else:
            if case.ready_s is not None:
                found.joined_at = time.monotonic() - began
                await self._start_replacement(is_extra=True)
                await asyncio.sleep(case.ready_s)
            found.hurt = sorted(tp.partition for tp in old.consumer.assignment)
            self._members.remove(old)
            found.ended_at = time.monotonic() - began
            await old.stop(case.ending == "leaves")
            if case.ready_s is None:
                await asyncio.sleep(size.away_s)
                found.joined_at = time.monotonic() - began
                await self._start_replacement(is_extra=False)
            await self._wait_for_shares()
            await self.wait_for_records(time.monotonic())
        await asyncio.sleep(1.0)
        self._fill_in(found, staying, began)
        return found

    async def wait_for_records(self, since: float) -> None:
        """Wait until every partition has brought a record since then."""
        every = set(range(self._size.partitions))
        await wait_until(
            lambda: {p for at, p, _ in self._arrivals if at >= since} == every,
            "records of every partition",
            GROUP_TIMEOUT_S,
        )

    async def _start_replacement(self, is_extra: bool) -> None:
        number = self._size.members if is_extra else self._size.members - 1
        new = await self._start_member(number)
        self._members.append(new)
        await wait_until(lambda: new.consumer.assignment, "the new member's share", GROUP_TIMEOUT_S)

    async def _start_member(self, number: int) -> GroupReader:
        size = self._size
        cluster = await self._stack.enter_async_context(
            Cluster(ClusterSettings(self._kafka.bootstrap))
        )
        await set_group_timeouts(
            cluster, self._name, size.session_timeout_s, size.session_timeout_s / 6
        )
        options = ConsumerOptions(
            protocol=self._case.protocol,
            instance_id=f"instance-{number}" if self._case.is_static else None,
            session_timeout=size.session_timeout_s,
            heartbeat_interval=HEARTBEAT_INTERVAL_S,
            auto_offset_reset="earliest",
            prefetch=True,
        )
        consumer = GroupConsumer(cluster, self._name, options)
        member = GroupReader(consumer, number, self._arrivals)
        self._stack.push_async_callback(member.stop, True)
        member.start(self.topic)
        return member

    async def _wait_for_shares(self) -> None:
        share = self._size.partitions // self._size.members
        await wait_until(
            lambda: all(
                len(each.consumer.assignment) == share
                and each.consumer.state is MemberState.RUNNING
                for each in self._members
            ),
            "even shares",
            GROUP_TIMEOUT_S,
        )

    def _fill_in(self, found: Replacement, staying: Sequence[GroupReader], began: float) -> None:
        """Take over what the members have noted."""
        found.silences = [
            round(max(0.0, find_longest_silence(self._arrivals, {p}, began) - found.interval_s), 4)
            for p in range(self._size.partitions)
        ]
        found.reads = list(merge_arrivals(self._arrivals, began, found.interval_s))
        for member in staying:
            for (begin, state), (end, _) in pairwise(member.states):
                if state is MemberState.REBALANCING and begin >= began:
                    found.rebalancing.append((round(begin - began, 4), round(end - began, 4)))


def merge_arrivals(
    arrivals: Sequence[Arrival], began: float, interval_s: float
) -> Iterator[tuple[int, int, float, float]]:
    """Yield partition, member, first and last time of records that came without a pause.

    Args:
        arrivals: All records, by time.
        began: What the times are relative to. What came more than a second earlier is left out.
        interval_s: The producer's interval; some of them without a record are a pause.
    """
    for partition in sorted({each.partition for each in arrivals}):
        own = [each for each in arrivals if each.partition == partition and each.at >= began - 1]
        first = last = own[0]
        for each in own[1:]:
            if each.member != first.member or each.at - last.at > PAUSE_INTERVALS * interval_s:
                yield partition, first.member, round(first.at - began, 3), round(last.at - began, 3)
                first = each
            last = each
        yield partition, first.member, round(first.at - began, 3), round(last.at - began, 3)


def choose_worst(runs: Sequence[Replacement]) -> Replacement:
    """Return the run of a case in which the partitions of the old member were silent longest."""
    return max(runs, key=lambda each: each.hurt_silence_s)


def render_table(runs: Sequence[Replacement]) -> str:
    """Render what the page of the docs has: of each case the worst of all its runs."""
    lines = [
        "| Case | Its partitions silent | The others silent | REBALANCING | Of 48 s |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, some in group_by_case(runs):
        silence = max(each.hurt_silence_s for each in some)
        factor = "" if not some[0].hurt else f"1/{ORIGINAL_SILENCE_S / max(silence, 0.001):,.0f}"
        lines.append(
            f"| {name} | {_format_time(silence)} "
            f"| {_format_time(max(each.other_silence_s for each in some))} "
            f"| {_format_time(max(each.rebalancing_s for each in some))} | {factor} |"
        )
    return "\n".join(lines)


def list_missed_goals(runs: Sequence[Replacement], size: Size = Size()) -> Iterator[str]:
    """Yield what a run does not keep of the goals."""
    cases = {case.name: case for case in size.cases}
    for each in runs:
        case, silence_s, rebalancing_s = cases[each.case], each.hurt_silence_s, each.rebalancing_s
        bound_s = _get_silence_goal(case, size)
        if silence_s > bound_s:
            yield f"{each.case}: silent for {silence_s:.3f} s, at most {bound_s:g} s wanted"
        if case.protocol == "consumer" and rebalancing_s > REBALANCING_GOAL_S:
            yield (
                f"{each.case}: REBALANCING for {rebalancing_s:.3f} s, "
                f"at most {REBALANCING_GOAL_S:g} s wanted"
            )


def _get_silence_goal(case: Case, size: Size) -> float:
    if case.ending == "killed":
        return size.session_timeout_s + EXPIRY_GOAL_S
    if case.is_static:
        return size.away_s + SILENCE_GOAL_S
    return math.inf if case.ready_s == 0 and case.protocol == "consumer" else SILENCE_GOAL_S


def group_by_case(runs: Sequence[Replacement]) -> Iterator[tuple[str, list[Replacement]]]:
    """Yield the name and the runs of each case."""
    for name in dict.fromkeys(each.case for each in runs):
        yield name, [each for each in runs if each.case == name]


def _format_time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


async def _measure_all(kafka: RealKafka, size: Size) -> list[Replacement]:
    runs = []
    for number in range(size.repeats):
        for case in size.cases:
            runs.append(found := await measure_case(kafka, size, case))
            print(
                f"{number + 1} of {size.repeats}  {found.case}: silent for "
                f"{_format_time(found.hurt_silence_s)}, "
                f"REBALANCING {_format_time(found.rebalancing_s)}",
                file=sys.stderr,
                flush=True,
            )
            kafka.delete_topics()
    return runs


def main() -> int:
    """Measure all cases, keep and draw the result, print the table."""
    size = Size()
    machine = results.describe_machine()
    with real_kafka(1) as kafka:
        runs = asyncio.run(_measure_all(kafka, size))
    path = results.DIRECTORY / f"{str(machine['date'])[:10]}-replacement.json"
    path.write_text(json.dumps({**machine, "runs": [asdict(each) for each in runs]}))
    worst = [choose_worst(some) for _, some in group_by_case(runs)]
    PLOT.write_text(replacement_plot.draw_timelines(worst))
    print(render_table(runs))
    missed = list(list_missed_goals(runs, size))
    for line in missed:
        print(line, file=sys.stderr)
    print(f"kept in {path}, drawn in {PLOT}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
