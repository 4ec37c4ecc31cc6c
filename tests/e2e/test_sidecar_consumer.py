"""Consumer instances over the socket, in the contract's words, on a real broker."""

from __future__ import annotations

import asyncio
import base64

import httpx
import pytest
from support.instances import Consuming, a_group, offsets_of
from support.sidecars import ready, running_sidecar
from support.until import until


@pytest.fixture
async def http(kafka):
    async with running_sidecar(kafka.bootstrap, consumer={}) as http:
        await ready(http)
        yield http


async def test_what_was_written_is_polled_committed_and_gone_on_from(http, topic, oracle):
    name = topic()
    written = await oracle.produce(name, 5)
    first = await Consuming.created(http, autoCommitEnable="false")
    await first.subscribe(name)
    records = await first.poll_all(5, format="string")
    assert [each["value"].encode() for each in records] == [each.value for each in written]
    assert (await first.commit()).json()["offsets"][0]["offset"] == 5
    await first.delete()
    await oracle.produce(name, 1)
    second = await Consuming.created(http, first.group)
    await second.subscribe(name)
    assert offsets_of(await second.poll()) == [5]
