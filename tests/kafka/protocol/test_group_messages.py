"""The messages of groups, in every version that we and a real broker speak."""

from __future__ import annotations

import uuid

import pytest
from support.group_members import wait_for_coordinator
from support.topic_reads import open_cluster

from gateway.core.error_code import ErrorCode
from gateway.core.group.consumer_member import ConsumerHeartbeatRequest
from gateway.core.log.record import TopicPartition
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.protocol.group_messages import (
    NO_MEMBER,
    FindCoordinatorRequest,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from gateway.kafka.protocol.member_messages import ConsumerGroupHeartbeatRequest


def list_versions(*requests) -> list:
    return [
        pytest.param(request, version, id=f"{request.API.name} {version}")
        for request in requests
        for version in range(request.API.lowest, request.API.highest + 1)
    ]


@pytest.mark.parametrize(
    "kind, version",
    list_versions(
        FindCoordinatorRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
    ),
)
async def test_a_broker_understands_each_version_and_is_understood(kafka, topic, kind, version):
    name, group = topic(partitions=2), f"group-{uuid.uuid4().hex[:12]}"
    one, none = TopicPartition(name, 1), TopicPartition(name, 0)
    async with open_cluster(kafka.bootstrap, name) as made:
        known = made.get_topic(name)
        await wait_for_coordinator(made, group)
        link = await made.coordinators.connect(group)
        link.conn._versions = {**link.versions, kind.API.key: (version, version)}

        async def send_request(request):
            return await made.connections.send(link.broker.node, ConnectionRole.GROUP, request)

        found = await send_request(FindCoordinatorRequest(group))
        assert (found.error, found.node) == (0, link.broker.node)
        offsets = {one: OffsetAndMetadata(7, 0, "note")}
        commit = OffsetCommitRequest(group, offsets, NO_MEMBER, {name: known.topic_id})
        assert (await send_request(commit)).errors == {one: 0}
        for asked in ([one, none], None):
            fetched = await send_request(OffsetFetchRequest(group, asked))
            assert (fetched.error, fetched.offsets) == (0, offsets)
        beat = ConsumerHeartbeatRequest(
            group=f"{group}-2", member_id=str(uuid.uuid4()), epoch=0, rebalance_timeout=60.0,
            topics=(name,), owned=frozenset(),
        )  # fmt: skip
        answer = await send_request(ConsumerGroupHeartbeatRequest(beat))
        assert answer.error == 0 and answer.epoch > 0 and answer.heartbeat_interval > 0
        assert answer.assignment == {known.topic_id: frozenset({0, 1})}
        leave = ConsumerHeartbeatRequest(group=beat.group, member_id=answer.member_id, epoch=-1)
        assert (await send_request(ConsumerGroupHeartbeatRequest(leave))).error == 0


async def test_an_offset_of_a_topic_that_was_deleted_is_not_taken_for_its_successor(kafka, topic):
    name, group = topic(), f"group-{uuid.uuid4().hex[:12]}"
    tp = TopicPartition(name, 0)
    async with open_cluster(kafka.bootstrap, name) as made:
        await wait_for_coordinator(made, group)
        ids = {name: uuid.uuid4()}
        request = OffsetCommitRequest(group, {tp: OffsetAndMetadata(7)}, NO_MEMBER, ids)
        answer = await made.coordinators.send(group, request)
        assert answer.errors == {tp: ErrorCode.UNKNOWN_TOPIC_ID}


def test_offsets_of_an_open_transaction_are_waited_for():
    """KIP-447: with `require_stable`, which is the last field."""
    assert OffsetFetchRequest("group", None).encode(8)[-2:] == b"\1\0"
