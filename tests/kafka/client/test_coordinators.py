"""Coordinators are looked up once, and again when they moved."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from support.group_members import wait_for_coordinator
from support.topic_reads import open_cluster

from gateway.errors import BrokerUnavailable
from gateway.kafka.protocol.group_messages import OffsetFetchRequest


async def test_all_who_ask_at_once_share_one_lookup_and_one_connection(kafka, topic):
    group = f"group-{uuid.uuid4().hex[:12]}"
    async with open_cluster(kafka.bootstrap, topic()) as made:
        await wait_for_coordinator(made, group)
        made.coordinators.forget(group)
        made.request_counts.clear()
        links = await asyncio.gather(*(made.coordinators.connect(group) for _ in range(20)))
        assert len(set(links)) == 1
        assert made.request_counts["FindCoordinator"] == 1
        answer = await made.coordinators.send(group, OffsetFetchRequest(group, None))
        assert (answer.error, answer.offsets) == (0, {})
        made.coordinators.forget(group)
        await made.coordinators.connect(group)
        assert made.request_counts["FindCoordinator"] == 2


async def test_who_waits_for_a_lookup_hears_that_all_is_closed(kafka, topic):
    async with open_cluster(kafka.bootstrap, topic()) as made:
        waiting = asyncio.create_task(made.coordinators.connect("any"))
        await asyncio.sleep(0)
    with pytest.raises(BrokerUnavailable):
        await waiting
