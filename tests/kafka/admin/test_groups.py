"""What is asked of and done to groups, on a real broker."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Place
from support.group_members import commit_positions, running_member
from support.records import RecordToSend, produce_records
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import GroupFailed, GroupInUse, UnknownTopic
from gateway.kafka import admin as group_admin
from gateway.kafka.admin import PartitionLag
from gateway.kafka.protocol.group_messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)

LONG = 60.0  # s
BOTH = pytest.mark.parametrize("protocol", ["consumer", "classic"])


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def running_reader(made, group: str, name: str, protocol: str, **how):
    """A member that has read and committed 10 records of partition 0, and nothing of 1."""
    async with running_member(made, group, [name], protocol=protocol, **how) as one:
        await produce_records(
            [*made.settings.servers], name, [RecordToSend(b"x", partition=0)] * 10
        )
        await wait_until(
            lambda: len(one.records) >= 10 and len(one.owned_partitions) == 2, timeout_s=LONG
        )
        await commit_positions(one.consumer)
        yield one


@BOTH
async def test_groups_are_listed_and_described_with_who_owns_what(kafka, topic, group, protocol):
    name = topic(partitions=2)
    async with (
        open_cluster(kafka.bootstrap, name) as made,
        running_reader(made, group, name, protocol, instance_id="pod-0"),
    ):
        (listed,) = [each for each in await group_admin.list_groups(made) if each.name == group]
        assert (listed.type, listed.state.lower()) == (protocol, "stable")
        described = await group_admin.describe_group(made, group)
        assert (described.type, described.state) == (protocol, "Stable")
        (found,) = described.members
        assert found.id and found.host
        assert (found.instance_id, found.client_id) == ("pod-0", "gateway")
        assert found.owned == {TopicPartition(name, 0), TopicPartition(name, 1)}


@pytest.mark.smoke
@BOTH
async def test_lag_is_told_for_what_is_committed_and_what_is_owned(kafka, topic, group, protocol):
    name = topic(partitions=2)
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    async with open_cluster(kafka.bootstrap, name) as made:
        async with running_reader(made, group, name, protocol):
            ((owner, *_),) = (await group_admin.describe_group(made, group)).members
            told = await group_admin.fetch_lag(made, group)
            assert told[zero] == PartitionLag(10, 10, owner) and told[zero].lag == 0
            assert told[one].owner == owner and told[one].end_offset == 0
        await produce_records(kafka.bootstrap, name, [RecordToSend(b"x", partition=0)] * 5)
        after = await group_admin.fetch_lag(made, group)
        assert after[zero] == PartitionLag(10, 15, None) and after[zero].lag == 5


def test_lag_that_cannot_be_said_is_none_and_what_went_away_is_no_debt():
    assert PartitionLag(None, 5).lag is None and PartitionLag(5, None).lag is None
    assert PartitionLag(9, 3).lag == 0


@BOTH
async def test_offsets_are_set_only_while_nobody_is_in_the_group_and_are_where_it_goes_on(
    kafka, topic, group, protocol
):
    name = topic(partitions=2)
    zero = TopicPartition(name, 0)
    async with open_cluster(kafka.bootstrap, name) as made:
        async with running_reader(made, group, name, protocol):
            with pytest.raises(GroupInUse, match="stop them"):
                await group_admin.set_offsets(made, group, {zero: 3})
            with pytest.raises(GroupInUse):
                await group_admin.delete_offsets(made, group, [zero])
            with pytest.raises(GroupInUse):
                await group_admin.delete_group(made, group)
            assert (await group_admin.fetch_lag(made, group))[zero].committed == 10
        await group_admin.set_offsets(made, group, {zero: 7})
        assert (await group_admin.fetch_lag(made, group))[zero].lag == 3
        async with running_member(made, group, [name], protocol=protocol) as back:
            await wait_until(lambda: len(back.records) >= 3, timeout_s=LONG)
            assert [record.offset for record in back.records] == [7, 8, 9]


async def test_offsets_of_a_group_that_never_was_make_it(kafka, topic, group):
    name = topic()
    tp = TopicPartition(name, 0)
    async with open_cluster(kafka.bootstrap, name) as made:
        await group_admin.set_offsets(made, group, {tp: 0})
        assert (await group_admin.describe_group(made, group)).state == "Empty"
        with pytest.raises(UnknownTopic, match="gone-0"):
            await group_admin.set_offsets(made, group, {TopicPartition("gone", 0): 0})


async def test_what_is_deleted_is_gone(kafka, topic, group):
    name = topic(partitions=2)
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    async with open_cluster(kafka.bootstrap, name) as made:
        await group_admin.set_offsets(made, group, {zero: 0, one: 0})
        await group_admin.delete_offsets(made, group, [zero])
        assert set(await group_admin.fetch_lag(made, group)) == {one}
        await group_admin.delete_group(made, group)
        with pytest.raises(GroupFailed, match="there is no group") as refused:
            await group_admin.describe_group(made, group)
        assert refused.value.code == ErrorCode.GROUP_ID_NOT_FOUND
        assert group not in {each.name for each in await group_admin.list_groups(made)}


async def test_a_committed_topic_that_was_deleted_has_no_end(kafka, topic, group):
    """The broker forgets such offsets by itself, a moment later."""
    name, doomed = topic(), topic()
    async with open_cluster(kafka.bootstrap, name) as made:
        await group_admin.set_offsets(
            made, group, {TopicPartition(name, 0): 0, TopicPartition(doomed, 0): 0}
        )
        await asyncio.to_thread(kafka.admin.delete_topic, doomed)
        told = await group_admin.fetch_lag(made, group)
        assert told[TopicPartition(name, 0)].lag == 0
        assert told.get(TopicPartition(doomed, 0), PartitionLag(0, None)).end_offset is None


async def test_librdkafka_sees_what_was_set(kafka, topic, group):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as made:
        await group_admin.set_offsets(made, group, {TopicPartition(name, 0): 42})
    asked = ConsumerGroupTopicPartitions(group, [Place(name, 0)])
    listing = kafka.admin.client.list_consumer_group_offsets([asked])[group]
    (found,) = (await asyncio.to_thread(listing.result)).topic_partitions
    assert found.offset == 42


@pytest.mark.parametrize("version", range(2, 6))
async def test_older_brokers_are_listed_in_their_words(kafka, topic, group, version: int):
    class OldListGroupsRequest(ListGroupsRequest):
        def choose_version(self, versions) -> int:
            return version

    name = topic()
    async with open_cluster(kafka.bootstrap, name) as made:
        await group_admin.set_offsets(made, group, {TopicPartition(name, 0): 0})
        answer = await made.coordinators.send(group, OldListGroupsRequest())
        (found,) = [one for one in answer.groups if one.name == group]
        assert (found.state == "Empty") == (version >= 4)
        assert (found.type == "classic") == (version >= 5)


@pytest.mark.parametrize("version", range(3, 7))
async def test_older_brokers_describe_a_classic_group(kafka, topic, group, version: int):
    class OldDescribeGroupsRequest(DescribeGroupsRequest):
        def choose_version(self, versions) -> int:
            return version

    name = topic(partitions=2)
    async with (
        open_cluster(kafka.bootstrap, name) as made,
        running_reader(made, group, name, "classic") as one,
    ):
        answer = await made.coordinators.send(group, OldDescribeGroupsRequest(group))
        assert (answer.error, answer.state, answer.assignor) == (0, "Stable", "cooperative-sticky")
        (found,) = answer.members
        assert found.owned == one.owned_partitions
        nobody = await made.coordinators.send(group, OldDescribeGroupsRequest(group + "-not"))
        assert nobody.error == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", range(3))
async def test_older_brokers_delete_a_group(kafka, topic, group, version: int):
    class OldDeleteGroupsRequest(DeleteGroupsRequest):
        def choose_version(self, versions) -> int:
            return version

    name = topic()
    async with open_cluster(kafka.bootstrap, name) as made:
        await group_admin.set_offsets(made, group, {TopicPartition(name, 0): 0})
        assert (await made.coordinators.send(group, OldDeleteGroupsRequest(group))).error == 0
        repeated = await made.coordinators.send(group, OldDeleteGroupsRequest(group))
        assert repeated.error == ErrorCode.GROUP_ID_NOT_FOUND
