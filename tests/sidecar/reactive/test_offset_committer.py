from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, NotOwned
from gateway.sidecar.reactive.offset_committer import OffsetCommitter

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class FakeCommit:
    """commits: what was asked for, one after the other. says: raised by the next ones."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, points: Mapping[TopicPartition, int]) -> None:
        self.commits.append(dict(points))
        await self.gate.wait()
        if self.error is not None:
            raise self.error


async def test_the_latest_points_are_committed_one_commit_at_a_time():
    kafka = FakeCommit()
    points = OffsetCommitter("g", kafka)
    running = asyncio.create_task(points.run())
    kafka.gate.clear()
    points.enqueue({A: 1})
    await wait_until(lambda: kafka.commits)
    for offset in (2, 3):
        points.enqueue({A: offset, B: offset})
    kafka.gate.set()
    await wait_until(lambda: points.committed(B) == 3)
    assert kafka.commits == [{A: 1}, {A: 3, B: 3}]
    points.enqueue({A: 3})
    await points.flush()
    assert len(kafka.commits) == 2, "it is committed already"
    running.cancel()


async def test_while_commits_fail_offsets_are_kept_and_the_failure_is_reported():
    kafka = FakeCommit()
    points = OffsetCommitter("g", kafka)
    kafka.error = BrokerUnavailable("no coordinator")
    running = asyncio.create_task(points.run())
    points.enqueue({A: 1})
    await wait_until(lambda: points.failure == "no coordinator")
    assert not points.can_commit.is_set()
    with pytest.raises(BrokerUnavailable):
        await points.flush([A])
    kafka.error = None
    await points.can_commit.wait()
    assert (points.failure, points.committed(A)) == ("", 1)
    running.cancel()


async def test_what_is_anothers_is_forgotten_and_the_rest_goes_on():
    kafka = FakeCommit()
    points = OffsetCommitter("g", kafka)
    points.enqueue({A: 1, B: 1})
    points.forget([A])
    await points.flush()
    assert kafka.commits == [{B: 1}]
    kafka.error = NotOwned("orders-1 is not this member's")
    points.enqueue({B: 2})
    await points.flush()
    assert points.failure == ""
    await points.flush()
    assert len(kafka.commits) == 2, "it is not tried again"


async def test_what_is_noted_again_after_a_loss_is_committed_again():
    """A commit that was refused meanwhile, as of a member that was forgotten, counted for it."""
    kafka = FakeCommit()
    points = OffsetCommitter("g", kafka)
    kafka.gate.clear()
    points.enqueue({A: 6})
    flushing = asyncio.create_task(points.flush())
    await wait_until(lambda: kafka.commits)
    points.forget([A])
    points.enqueue({A: 6})
    kafka.error = NotOwned("the group went on without this member")
    kafka.gate.set()
    await flushing
    assert points.committed(A) is None
    kafka.error = None
    await points.flush()
    assert (kafka.commits, points.committed(A)) == ([{A: 6}, {A: 6}], 6)


async def test_giving_up_partitions_commits_only_their_offsets():
    kafka = FakeCommit()
    points = OffsetCommitter("g", kafka)
    points.enqueue({A: 1, B: 1})
    await points.flush([A])
    assert kafka.commits == [{A: 1}]
    await points.flush()
    assert kafka.commits == [{A: 1}, {B: 1}]


async def test_what_could_not_be_committed_and_is_anothers_holds_up_nothing():
    """Lanes waited for a commit that nobody was going to try again."""
    kafka = FakeCommit()
    points = OffsetCommitter("g", kafka)
    kafka.error = BrokerUnavailable("away")
    points.enqueue({A: 1})
    running = asyncio.create_task(points.run())
    try:
        await wait_until(lambda: points.failure)
        points.forget([A])
        await wait_until(points.can_commit.is_set)
        assert points.failure == ""
    finally:
        running.cancel()
