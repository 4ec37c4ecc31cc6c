"""`gateway sidecar` as a process on a real broker: what is written is there once, or not at all."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from support.certificates import Authority
from support.gateways import Gateway, browsing, config_for, running_gateway
from support.letters import committed
from support.needs import need
from support.proxy import Api, KafkaProxy, Request
from typer.testing import CliRunner

from gateway.cli import app as cli

COMMAND = (sys.executable, "-m", "gateway", "sidecar", "-c")
SEED = {
    "string-binary": """\
curl -k --location --request POST 'https://localhost:8443/producers/test6' \\
--header 'Content-Type: application/json' \\
--data-raw '{"records":[{"key":"alice","value":"YWJj"},{"key":"john","value":"ZGVm"},{"key":"alex","value":"eHl6"}]}'""",  # noqa: E501
    "binary-string": """\
curl -k --location --request POST 'https://localhost:8443/producers/test6' \\
--header 'Content-Type: application/json' \\
--data-raw '{"records":[{"key":"YWxpY2U=","value":"abc"},{"key":"am9obg==","value":"def"},{"key":"YWxleA==","value":"xyz"}]}'""",  # noqa: E501
}
VALUES = """\
kafka-producer.keyFormat: binary
kafka-producer.valueFormat: string
kafka-consumer.keyFormat: binary
kafka-consumer.valueFormat: string
"""


def config(bootstrap: Any, **producer: Any) -> dict[str, Any]:
    """idempotency: in a topic of the test's own."""
    idempotency = {"topic": f"idempotency-{uuid.uuid4().hex[:8]}"}
    section = {"timeout": "5s", "idempotency": idempotency, **producer}
    return config_for(bootstrap, [], [], sidecar={"producer": section})


async def post(
    gateway: Gateway, topic: str, *values: Any, key: str | None = None, **more: Any
) -> httpx.Response:
    body = {"valueFormat": "string", "records": [{"value": each} for each in values], **more}
    headers = {} if key is None else {"Idempotency-Key": key}
    async with browsing(gateway) as http:
        return await http.post(f"/producers/{topic}", json=body, headers=headers)


def values(kafka: Any, topic: str, partitions: int = 1) -> list[bytes]:
    return sorted(message.value() for message in committed(kafka, topic, partitions))


@pytest.mark.needs("curl")
@pytest.mark.parametrize("formats", SEED)
async def test_the_seeds_own_commands_write_what_they_say(kafka, tmp_path, formats):
    need("curl")
    own = Authority(tmp_path).signed("sidecar")
    made = config_for(
        kafka.servers, [], [], sidecar={"producer": {}},
        listen={"tls": {"certificate": str(own), "key": str(own)}},
    )  # fmt: skip
    (tmp_path / "values.yml").write_text(VALUES)
    over = ["--values", str(tmp_path / "values.yml")] if formats == "binary-string" else []
    kafka.create_topic("test6", 1)
    async with running_gateway(made, command=COMMAND, arguments=over, ready=False) as gateway:
        assert gateway.host == "https://127.0.0.1"
        await ready_at(gateway)
        line = SEED[formats] + f" --connect-to localhost:8443:127.0.0.1:{gateway.port} -sS"
        done = await asyncio.to_thread(
            subprocess.run, line, shell=True, capture_output=True, text=True, check=True, timeout=60
        )
    assert json.loads(done.stdout)["requestStatus"] == "OK", done.stdout
    found = [(message.key(), message.value()) for message in committed(kafka, "test6")]
    assert found == [(b"alice", b"abc"), (b"john", b"def"), (b"alex", b"xyz")]


async def ready_at(gateway: Gateway) -> None:
    async with (
        asyncio.timeout(60),
        httpx.AsyncClient(base_url=gateway.base_url, verify=False, trust_env=False) as http,
    ):
        while (await http.get("/health/ready")).status_code != 200:
            pass


async def test_a_request_that_comes_again_is_written_once_at_any_replica(kafka, topic):
    name, made = topic(), config(kafka.servers)
    async with (
        running_gateway(made, command=COMMAND) as one,
        running_gateway(made, command=COMMAND) as other,
    ):
        key = "the-key-1"
        twins = [post(each, name, "a", "b", key=key) for each in (one, other, one, other)]
        answers = await asyncio.gather(*twins)
        assert [answer.status_code for answer in answers] == [200] * 4, answers[0].text
        assert len({answer.text for answer in answers}) == 1
        await one.restart()
        again = await post(one, name, "a", "b", key=key)
        assert (again.status_code, again.text) == (200, answers[0].text)
        assert again.headers["Idempotent-Replayed"] == "true"
        another = await post(other, name, "c", key=key)
        assert (another.status_code, another.json()["code"]) == (422, "KEY_REUSED")
        assert (await post(other, name, "d", key="another")).status_code == 200
    assert values(kafka, name) == [b"a", b"b", b"d"]


async def test_a_replica_killed_in_the_middle_leaves_nothing_and_another_writes_it_once(
    kafka, topic
):
    """The records are in Kafka and their transaction is open when it dies: the end of the
    transaction does not get through to the broker."""
    name = topic()
    made = config(kafka.servers, timeout="2s")
    async with (
        KafkaProxy.around(kafka.servers) as proxy,
        running_gateway(made, command=COMMAND) as good,
    ):
        assert (await post(good, name, "warm", key="warm")).status_code == 200
        behind = {**made, "kafka": {**made["kafka"], "servers": proxy.bootstrap.split(",")}}
        async with running_gateway(behind, command=COMMAND) as bad:
            assert (await post(bad, name, "also", key="also")).status_code == 200
            proxy.on_request = open_for_ever
            doomed = asyncio.create_task(post(bad, name, "a", "b", key="k"))
            async with asyncio.timeout(60):
                while len(await asyncio.to_thread(uncommitted, kafka, name)) < 4:
                    pass
            await bad.kill()
            await asyncio.gather(doomed, return_exceptions=True)
            answer = await post(good, name, "a", "b", key="k")
            assert answer.status_code == 200, answer.text
            assert "is taken over from" in good.log
            again = await post(good, name, "a", "b", key="k")
            assert again.text == answer.text
    assert values(kafka, name) == [b"a", b"also", b"b", b"warm"]


def open_for_ever(request: Request) -> bytes | None:
    """CONCURRENT_TRANSACTIONS, to whoever ends one; the broker never hears of it."""
    return struct.pack(">ih", 0, 51) if request.api_key == Api.END_TXN else None


def uncommitted(kafka: Any, topic: str) -> list[Any]:
    """Records of open transactions, too."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.servers, "group.id": "nobody",
            "isolation.level": "read_uncommitted", "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    try:
        while (message := consumer.poll(60)) is not None and message.error() is None:
            found.append(message)
    finally:
        consumer.close()
    return found


async def test_a_transactional_batch_is_there_whole_or_not_at_all(kafka, topic):
    name = topic(configs={"max.message.bytes": "2000"})
    async with running_gateway(config(kafka.servers), command=COMMAND) as gateway:
        fine = await post(gateway, name, "a", "b", transactional=True)
        assert (fine.status_code, len(fine.json()["offsets"])) == (200, 2)
        large = await post(gateway, name, "c", "x" * 5000, transactional=True)
        assert large.status_code == 413
        assert {each["errorCode"] for each in large.json()["offsets"]} <= {413, 424}
        wrong = await post(gateway, name, "d", 7, transactional=True)
        assert [each["errorCode"] for each in wrong.json()["offsets"]] == [424, 400]
        assert wrong.status_code == 400
        assert (await post(gateway, name, "e", transactional=True)).status_code == 200
    assert values(kafka, name) == [b"a", b"b", b"e"]


async def test_a_key_whose_records_were_refused_may_be_used_again(kafka, topic):
    name = topic(configs={"max.message.bytes": "2000"})
    async with running_gateway(config(kafka.servers), command=COMMAND) as gateway:
        refused = await post(gateway, name, "x" * 5000, key="k")
        assert refused.status_code == 413
        assert (await post(gateway, name, "small", key="k")).status_code == 200
    assert values(kafka, name) == [b"small"]


async def test_told_to_end_it_answers_what_it_took_on(kafka, topic):
    name = topic()
    async with running_gateway(config(kafka.servers), command=COMMAND) as gateway:
        asked = [asyncio.create_task(post(gateway, name, f"{n}")) for n in range(20)]
        await asked[0]
        assert await gateway.stop() == 0
        answers = await asyncio.gather(*asked, return_exceptions=True)
    acknowledged = [each for each in answers if isinstance(each, httpx.Response)]
    assert all(each.status_code in (200, 503) for each in acknowledged)
    assert len(values(kafka, name)) >= sum(each.status_code == 200 for each in acknowledged)


def test_without_a_section_there_is_nothing_to_serve(tmp_path: Path):
    (tmp_path / "a.yaml").write_text('kafka: {servers: ["a:1"]}\n')
    done = CliRunner().invoke(cli, ["sidecar", "-c", str(tmp_path / "a.yaml")])
    assert done.exit_code == 78
    assert "there is no section sidecar" in done.output
