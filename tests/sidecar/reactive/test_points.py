from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from support.until import until

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, NotOwned
from gateway.sidecar.reactive.points import Points

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Kafka:
    """commits: what was asked for, one after the other. says: raised by the next ones."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.says: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, points: Mapping[TopicPartition, int]) -> None:
        self.commits.append(dict(points))
        await self.gate.wait()
        if self.says is not None:
            raise self.says


async def test_the_latest_points_are_committed_one_commit_at_a_time():
    kafka = Kafka()
    points = Points("g", kafka)
    running = asyncio.create_task(points.run())
    kafka.gate.clear()
    points.note({A: 1})
    await until(lambda: kafka.commits)
    for offset in (2, 3):
        points.note({A: offset, B: offset})
    kafka.gate.set()
    await until(lambda: points.committed(B) == 3)
    assert kafka.commits == [{A: 1}, {A: 3, B: 3}]
    points.note({A: 3})
    await points.flush()
    assert len(kafka.commits) == 2, "it is committed already"
    running.cancel()


async def test_while_nothing_can_be_committed_it_is_said_and_kept():
    kafka = Kafka()
    points = Points("g", kafka)
    kafka.says = BrokerUnavailable("no coordinator")
    running = asyncio.create_task(points.run())
    points.note({A: 1})
    await until(lambda: points.failing == "no coordinator")
    assert not points.good.is_set()
    with pytest.raises(BrokerUnavailable):
        await points.flush([A])
    kafka.says = None
    await points.good.wait()
    assert (points.failing, points.committed(A)) == ("", 1)
    running.cancel()


async def test_what_is_anothers_is_forgotten_and_the_rest_goes_on():
    kafka = Kafka()
    points = Points("g", kafka)
    points.note({A: 1, B: 1})
    points.forget([A])
    await points.flush()
    assert kafka.commits == [{B: 1}]
    kafka.says = NotOwned("orders-1 is not this member's")
    points.note({B: 2})
    await points.flush()
    assert points.failing == ""
    await points.flush()
    assert len(kafka.commits) == 2, "it is not tried again"


async def test_what_is_noted_again_after_a_loss_is_committed_again():
    """A commit that was refused meanwhile, as of a member that was forgotten, counted for it."""
    kafka = Kafka()
    points = Points("g", kafka)
    kafka.gate.clear()
    points.note({A: 6})
    flushing = asyncio.create_task(points.flush())
    await until(lambda: kafka.commits)
    points.forget([A])
    points.note({A: 6})
    kafka.says = NotOwned("the group went on without this member")
    kafka.gate.set()
    await flushing
    assert points.committed(A) is None
    kafka.says = None
    await points.flush()
    assert (kafka.commits, points.committed(A)) == ([{A: 6}, {A: 6}], 6)


async def test_who_gives_up_partitions_commits_theirs_only():
    kafka = Kafka()
    points = Points("g", kafka)
    points.note({A: 1, B: 1})
    await points.flush([A])
    assert kafka.commits == [{A: 1}]
    await points.flush()
    assert kafka.commits == [{A: 1}, {B: 1}]


async def test_what_could_not_be_committed_and_is_anothers_holds_up_nothing():
    """Lanes waited for a commit that nobody was going to try again."""
    kafka = Kafka()
    points = Points("g", kafka)
    kafka.says = BrokerUnavailable("away")
    points.note({A: 1})
    running = asyncio.create_task(points.run())
    try:
        await until(lambda: points.failing)
        points.forget([A])
        await until(points.good.is_set)
        assert points.failing == ""
    finally:
        running.cancel()
