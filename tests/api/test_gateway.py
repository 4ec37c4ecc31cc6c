from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.leaks import collect_resources
from support.waiting import wait_until

from gateway import ConfigError, Gateway, GatewayError, loads
from gateway.kafka.embedded import EmbeddedKafka

CONFIG = """
kafka:
  servers: ["localhost:9092"]
  topics: [{name: orders, defaultOffset: historical}]
"""


def test_settings_come_as_such_from_a_file_or_as_options_of_kafka(tmp_path: Path):
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG)
    topics = [{"name": "orders", "defaultOffset": "historical"}]
    made = [
        Gateway(loads(CONFIG)),
        Gateway(file),
        Gateway(str(file)),
        Gateway(servers="localhost:9092", topics=topics),
        Gateway(servers=["localhost:9092"], topics=topics),
    ]
    assert all(each.settings == made[0].settings for each in made)


def test_several_servers_are_a_list_or_a_text():
    for servers in ("a:1,b:2", "a:1, b:2", ["a:1", "b:2"], ("a:1", "b:2")):
        assert Gateway(servers=servers).settings.kafka.servers == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"servers": "http://a"}, "kafka.servers"),
        ({"servers": "a:1", "toppics": []}, "kafka.toppics"),
        ({"servers": "a:1", "rack": 5}, "kafka.rack: expects text, not 5"),
    ],
)
def test_wrong_options_are_told_like_those_of_a_file(options: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        Gateway(**options)


def test_settings_and_servers_exclude_each_other():
    for wrong in ((), (loads(CONFIG), "a:1")):
        with pytest.raises(TypeError, match="give settings, or servers"):
            Gateway(*wrong[:1], servers=wrong[1] if wrong else None)
    with pytest.raises(TypeError, match="give settings, or servers"):
        Gateway(loads(CONFIG), topics=[])


async def test_embedded_is_no_server_of_a_program():
    with pytest.raises(GatewayError, match="EmbeddedKafka"):
        await Gateway(servers="embedded").start()


async def test_it_is_started_once_at_a_time(embedded: EmbeddedKafka):
    async with Gateway(servers=embedded.bootstrap) as gateway:
        with pytest.raises(GatewayError, match="started already"):
            await gateway.start()
        embedded.create_topic("orders")
        async with gateway.subscribe("orders"):
            pass


def test_it_is_started_again_in_other_loops_and_leaves_nothing(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 2)
    gateway = Gateway(servers=embedded.bootstrap)

    async def once() -> None:
        before = collect_resources()
        for _ in range(3):
            async with gateway, gateway.subscribe("orders"):
                assert len(gateway.hub.clients) == 1
        await wait_until(
            lambda: not collect_resources() - before, lambda: f"{collect_resources() - before}"
        )

    for _ in range(3):
        asyncio.run(once())


async def test_a_record_is_written_as_given_and_told_where(embedded: EmbeddedKafka):
    embedded.create_topic("orders", 3)
    async with (
        asyncio.timeout(60),
        Gateway(servers=embedded.bootstrap) as gateway,
        gateway.subscribe("orders") as stream,
    ):
        headers = [("a", b"\xff"), ("a", "text")]
        written = await gateway.produce("orders", b"\xfe", key="ada", headers=headers)
        record = await anext(stream)
        assert record[:3] == written[:3]
        assert (record.key, record.value) == (b"ada", b"\xfe")
        assert record.headers == (("a", b"\xff"), ("a", b"text"))
        again = await gateway.produce("orders", None, key=b"ada", headers={"b": None})
        assert again[:3] == ("orders", written.partition, written.offset + 1)
        record = await anext(stream)
        assert (record.value, record.headers) == (None, (("b", None),))


async def test_a_record_with_an_idempotency_key_is_written_once(embedded: EmbeddedKafka):
    """By another process too, which reads the keys in the log first."""
    embedded.create_topic("orders", 3)
    async with asyncio.timeout(60):
        told = []
        for _ in range(2):
            async with Gateway(servers=embedded.bootstrap) as gateway:
                for _ in range(2):
                    told.append(await gateway.produce("orders", "1", idempotency_key="one"))
        assert [each.repeated for each in told] == [False, True, True, True]
        assert len({each[:3] for each in told}) == 1
        async with Gateway(servers=embedded.bootstrap) as gateway:
            stream = gateway.subscribe("orders", start="earliest", until="latest")
            assert [record.value async for record in stream] == [b"1"]


async def test_a_gateway_that_does_not_run_writes_nothing(embedded: EmbeddedKafka):
    gateway = Gateway(servers=embedded.bootstrap)
    for _ in range(2):
        with pytest.raises(GatewayError, match="does not run"):
            await gateway.produce("orders", b"1")
        async with gateway:
            pass
