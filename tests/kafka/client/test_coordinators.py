"""Coordinators are looked up once, and again when they moved."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from support.consuming import coordinated
from support.reading import cluster

from gateway.errors import BrokerUnavailable
from gateway.kafka.protocol.group_messages import OffsetFetchRequest


async def test_all_who_ask_at_once_share_one_lookup_and_one_connection(kafka, topic):
    group = f"group-{uuid.uuid4().hex[:12]}"
    async with cluster(kafka.bootstrap, topic()) as made:
        await coordinated(made, group)
        made.coordinators.forget(group)
        made.requests.clear()
        links = await asyncio.gather(*(made.coordinators.link(group) for _ in range(20)))
        assert len(set(links)) == 1
        assert made.requests["FindCoordinator"] == 1
        answer = await made.coordinators.send(group, OffsetFetchRequest(group, None))
        assert (answer.error, answer.offsets) == (0, {})
        made.coordinators.forget(group)
        await made.coordinators.link(group)
        assert made.requests["FindCoordinator"] == 2


async def test_who_waits_for_a_lookup_hears_that_all_is_closed(kafka, topic):
    async with cluster(kafka.bootstrap, topic()) as made:
        waiting = asyncio.create_task(made.coordinators.link("any"))
        await asyncio.sleep(0)
    with pytest.raises(BrokerUnavailable):
        await waiting
