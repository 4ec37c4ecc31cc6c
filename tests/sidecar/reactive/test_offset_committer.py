from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from support.tasks import running_task
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, NotOwned, UnknownTopic
from gateway.sidecar.reactive.lanes import OffsetCommitter

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


@asynccontextmanager
async def running_committer(commit: FakeCommit) -> AsyncIterator[OffsetCommitter]:
    committer = OffsetCommitter("g", commit)
    async with running_task(committer.run()):
        yield committer


async def test_the_latest_points_are_committed_one_commit_at_a_time():
    kafka = FakeCommit()
    async with running_committer(kafka) as points:
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


async def test_while_commits_fail_offsets_are_kept_and_the_failure_is_reported():
    kafka = FakeCommit()
    kafka.error = BrokerUnavailable("no coordinator")
    async with running_committer(kafka) as points:
        points.enqueue({A: 1})
        await wait_until(lambda: points.failure == "no coordinator")
        may_go_on = asyncio.Event()
        assert points.find_held([A, B], may_go_on.set) == {A}
        with pytest.raises(BrokerUnavailable):
            await points.flush([A])
        kafka.error = None
        await may_go_on.wait()
        assert not points.find_held([A, B], may_go_on.set)
        assert (points.failure, points.committed(A)) == ("", 1)


async def test_what_is_anothers_is_forgotten_and_the_rest_goes_on():
    kafka = FakeCommit()
    points = OffsetCommitter("g", kafka)
    points.enqueue({A: 1, B: 1})
    points.forget([A])
    await points.flush()
    assert kafka.commits == [{B: 1}]
    kafka.error = NotOwned("orders-1 is not this member's", partitions=[B])
    points.enqueue({A: 2, B: 2})
    await points.flush()
    assert (points.failure, points.committed(A), points.committed(B)) == ("", 2, 1)
    points.forget([B])
    await points.flush()
    assert len(kafka.commits) == 2, "it is not tried again"


async def test_a_partition_of_which_a_commit_was_refused_gets_no_further_batches():
    """The refusal counted as a commit: until its member heard that the partition was lost, the lane
    sent one batch after the other, which came again at the next owner."""
    kafka = FakeCommit()
    points = OffsetCommitter("g", kafka)
    kafka.error = NotOwned("the group went on without this member", partitions=[A])
    points.enqueue({A: 1})
    await points.flush()
    may_go_on = asyncio.Event()
    assert points.find_held([A, B], may_go_on.set) == {A}
    points.forget([A])
    assert may_go_on.is_set() and not points.find_held([A], may_go_on.set)


async def test_a_commit_that_was_refused_is_tried_again_unless_the_partition_goes():
    kafka = FakeCommit()
    kafka.error = NotOwned("the group went on without this member", partitions=[A])
    async with running_committer(kafka) as points:
        points.enqueue({A: 1})
        await wait_until(lambda: kafka.commits)
        kafka.error = None
        await wait_until(lambda: points.committed(A) == 1)
        assert not points.find_held([A], lambda: None)


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
    kafka.error = NotOwned("the group went on without this member", partitions=[A])
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
    kafka.error = BrokerUnavailable("away")
    async with running_committer(kafka) as points:
        points.enqueue({A: 1})
        await wait_until(lambda: points.failure)
        points.forget([A])
        await wait_until(lambda: not points.find_held([A], lambda: None))
        assert points.failure == ""


async def test_a_third_batch_of_a_partition_waits_for_the_commit_of_the_first():
    kafka = FakeCommit()
    may_go_on = asyncio.Event()
    async with running_committer(kafka) as points:
        kafka.gate.clear()
        points.enqueue({A: 1, B: 1})
        await wait_until(lambda: kafka.commits)
        assert not points.find_held([A, B], may_go_on.set)
        points.enqueue({A: 2})
        assert points.find_held([A, B], may_go_on.set) == {A}
        points.forget([A])
        assert may_go_on.is_set() and not points.find_held([A, B], may_go_on.set)
        may_go_on.clear()
        points.enqueue({A: 3})
        points.enqueue({A: 4})
        assert points.find_held([A], may_go_on.set)
        kafka.gate.set()
        await wait_until(lambda: not points.find_held([A], may_go_on.set))
        assert may_go_on.is_set()


async def test_the_commit_of_the_first_batch_lets_one_more_be_sent():
    kafka = FakeCommit()
    points = OffsetCommitter("g", kafka)
    kafka.gate.clear()
    points.enqueue({A: 1})
    flushing = asyncio.create_task(points.flush())
    await wait_until(lambda: kafka.commits)
    points.enqueue({A: 2})
    kafka.gate.set()
    await flushing
    assert points.committed(A) == 1 and not points.find_held([A], lambda: None)
    points.enqueue({A: 3})
    assert points.find_held([A], lambda: None)
    await points.flush()
    assert kafka.commits == [{A: 1}, {A: 3}] and points.committed(A) == 3


async def test_a_topic_that_cannot_be_committed_holds_up_no_other():
    """A group that read two topics delivered nothing any more once one of them was deleted, or
    might not be read: whatever was refused of a commit counted for all of it."""
    kafka = FakeCommit()
    kafka.error = UnknownTopic("it was deleted", topic="orders")
    kafka.error.partitions = frozenset([B])
    async with running_committer(kafka) as points:
        points.enqueue({A: 1, B: 1})
        await wait_until(lambda: points.committed(A) == 1)
        assert points.find_held([A, B], lambda: None) == {B}
        assert points.failure == "it was deleted"
        # The commit of B gets no answer at all now; those of A go on meanwhile.
        kafka.gate.clear()
        await wait_until(lambda: kafka.commits[-1] == {B: 1})
        kafka.gate, kafka.error = asyncio.Event(), None
        kafka.gate.set()
        for offset in (2, 3):
            points.enqueue({A: offset})
            await wait_until(lambda at=offset: points.committed(A) == at)
        assert points.find_held([A, B], lambda: None) == {B}


async def test_no_two_commits_under_way_have_the_same_partition():
    """The older offset was accepted last, and its batch came again."""
    kafka = FakeCommit()
    kafka.error = BrokerUnavailable("away")
    async with running_committer(kafka) as points:
        points.enqueue({A: 1})
        await wait_until(lambda: points.failure)
        kafka.gate.clear()
        retried = len(kafka.commits) + 1
        await wait_until(lambda: len(kafka.commits) == retried)
        kafka.error = None
        points.enqueue({A: 2, B: 2})
        flushing = asyncio.create_task(points.flush())
        await wait_until(lambda: len(kafka.commits) == retried + 1)
        assert kafka.commits[-1] == {B: 2}
        kafka.gate.set()
        await flushing
        assert kafka.commits[retried + 1 :] == [{A: 2}]
        assert (points.committed(A), points.committed(B)) == (2, 2)
