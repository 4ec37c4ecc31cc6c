"""Commits against a coordinator that answers what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast
from uuid import UUID

import pytest
from support.virtual_time import run_in_virtual_time

from gateway.core.error_code import ErrorCode
from gateway.core.group.partition_state import TopicMark
from gateway.core.log.record import TopicPartition
from gateway.errors import UnknownTopic
from gateway.kafka.client.brokers import Coordinators
from gateway.kafka.group.group_offsets import GroupOffsets
from gateway.kafka.protocol.group_messages import (
    OffsetAndMetadata,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from gateway.kafka.protocol.requests import PartitionErrors

HERE, GONE = TopicPartition("here", 0), TopicPartition("gone", 0)
UNKNOWN = (3, 100, 103)


class FakeCoordinator:
    """Stores what it accepts. judge: the error of a partition at a time in seconds."""

    cluster_id = "here"

    def __init__(self, judge: Callable[[TopicPartition, float], int]) -> None:
        self.stored_offsets: dict[TopicPartition, int] = {}
        self.forgotten_groups: list[str] = []
        self._get_error = judge

    def forget(self, group: str) -> None:
        self.forgotten_groups.append(group)

    async def send(self, group: str, request: Any) -> PartitionErrors:
        now = asyncio.get_running_loop().time()
        errors = {tp: self._get_error(tp, now) for tp in request.offsets}
        self.stored_offsets |= {
            tp: each.offset for tp, each in request.offsets.items() if not errors[tp]
        }
        return PartitionErrors(0, errors)


async def measure_commit(
    coordinator: FakeCoordinator, offsets: Mapping[TopicPartition, int]
) -> float:
    """Return how long it took, in seconds."""
    commits = GroupOffsets(cast(Coordinators, coordinator), "billing")
    await commits.commit({tp: OffsetAndMetadata(at) for tp, at in offsets.items()}, lambda _: None)
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("code", UNKNOWN)
def test_a_deleted_topic_holds_up_a_commit_for_two_seconds_at_most(code: int):
    """A member that gave up a deleted topic committed it for 30 s first, and its group read no
    new topic for so long."""
    coordinator = FakeCoordinator(lambda tp, _: code if tp == GONE else 0)

    async def main() -> float:
        with pytest.raises(UnknownTopic, match="gone") as told:
            await measure_commit(coordinator, {HERE: 5, GONE: 7})
        assert told.value.topic == "gone"
        return asyncio.get_running_loop().time()

    assert 2.0 <= run_in_virtual_time(main()) <= 3.5
    assert coordinator.stored_offsets == {HERE: 5}


@pytest.mark.parametrize("code", UNKNOWN)
def test_a_topic_that_is_new_to_the_coordinator_is_committed(code: int):
    coordinator = FakeCoordinator(lambda tp, now: code if tp == GONE and now < 1.5 else 0)
    assert run_in_virtual_time(measure_commit(coordinator, {HERE: 5, GONE: 7})) < 3
    assert coordinator.stored_offsets == {HERE: 5, GONE: 7}


def test_an_unknown_topic_does_not_end_the_wait_for_another_reason():
    """The other partition's coordinator is away for ten seconds."""
    coordinator = FakeCoordinator(lambda tp, now: 3 if tp == GONE else 7 if now < 10 else 0)

    async def main() -> None:
        with pytest.raises(UnknownTopic):
            await measure_commit(coordinator, {HERE: 5, GONE: 7})

    run_in_virtual_time(main())
    assert coordinator.stored_offsets == {HERE: 5}


def test_a_coordinator_that_is_none_any_more_is_looked_for_again():
    coordinator = FakeCoordinator(lambda _, now: ErrorCode.NOT_COORDINATOR if now < 0.01 else 0)
    run_in_virtual_time(measure_commit(coordinator, {HERE: 5}))
    assert coordinator.forgotten_groups == ["billing"]
    assert coordinator.stored_offsets == {HERE: 5}


class StoringCoordinator:
    """Stores what is committed, and gives it back."""

    def __init__(self, cluster_id: str | None = "here") -> None:
        self.cluster_id = cluster_id
        self.stored: dict[TopicPartition, OffsetAndMetadata] = {}

    async def send(self, group: str, request: Any) -> Any:
        if isinstance(request, OffsetFetchRequest):
            return OffsetFetchResponse(0, 0, dict(self.stored))
        self.stored |= request.offsets
        return PartitionErrors(0, dict.fromkeys(request.offsets, 0))


async def test_an_offset_is_stored_with_the_mark_of_its_topic_behind_its_metadata():
    """With metadata of its own it had none, and the group lost records of added partitions."""
    coordinator, topic_id = StoringCoordinator(), UUID(int=7)
    offsets = GroupOffsets(cast(Coordinators, coordinator), "billing")
    committed = {
        HERE: OffsetAndMetadata(5, 3),
        GONE: OffsetAndMetadata(7, 3, "a note"),
        TopicPartition("older", 0): OffsetAndMetadata(9),
    }
    marks = dict.fromkeys(("here", "gone"), TopicMark(topic_id, initial_partitions=3))
    await offsets.commit(committed, marks.get)
    assert coordinator.stored[HERE].metadata == f"topic-id={topic_id},partitions=3,cluster-id=here"
    assert await offsets.committed(None) == committed
    found = await offsets.committed_with_topics(None)
    assert [mark and mark.topic_id for _, mark in found.values()] == [topic_id, topic_id, None]


@pytest.mark.parametrize("metadata", ["topic-id=", "topic-id=nonsense", "my topic-id=1", None])
async def test_metadata_of_others_is_given_back_as_it_is(metadata: str | None):
    coordinator = StoringCoordinator()
    coordinator.stored[HERE] = OffsetAndMetadata(5, 3, metadata)
    found = await GroupOffsets(cast(Coordinators, coordinator), "billing").committed_with_topics(
        [HERE]
    )
    assert found == {HERE: (coordinator.stored[HERE], None)}


@pytest.mark.parametrize(
    ("own", "other", "is_known"),
    [("here", "here", True), ("here", "there", False), ("here", None, True), (None, "there", True)],
)
async def test_an_offset_that_was_copied_from_another_cluster_says_nothing_of_its_topic_here(
    own, other, is_known
):
    """MirrorMaker 2 copies the metadata of offsets, and a topic has another id in each cluster."""
    coordinator, topic_id = StoringCoordinator(other), UUID(int=7)
    offsets = GroupOffsets(cast(Coordinators, coordinator), "billing")
    await offsets.commit({HERE: OffsetAndMetadata(5, 3)}, lambda _: TopicMark(topic_id))
    coordinator.cluster_id = own
    (offset, mark), *_ = (await offsets.committed_with_topics([HERE])).values()
    assert (offset, mark is not None) == (OffsetAndMetadata(5, 3), is_known)
