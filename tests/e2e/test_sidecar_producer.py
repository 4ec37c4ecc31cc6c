"""`gateway sidecar` as a process on a real broker: what is written is there once, or not at all."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from support.certificates import CertificateAuthority
from support.dead_letters import read_committed
from support.gateways import (
    GatewayProcess,
    build_config,
    create_http_client,
    running_gateway_process,
)
from support.kafka_proxy import ApiKey, KafkaProxy, SeenRequest
from support.requirements import require_tools
from support.sidecars import running_sidecar
from typer.testing import CliRunner

from gateway.cli import app as cli
from gateway.core.error_code import ErrorCode

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
    return build_config(bootstrap, [], [], sidecar={"producer": section})


async def post(
    gateway: GatewayProcess, topic: str, *values: Any, key: str | None = None, **more: Any
) -> httpx.Response:
    body = {"valueFormat": "string", "records": [{"value": each} for each in values], **more}
    headers = {} if key is None else {"Idempotency-Key": key}
    async with create_http_client(gateway) as http:
        return await http.post(f"/producers/{topic}", json=body, headers=headers)


def values(kafka: Any, topic: str, partitions: int = 1) -> list[bytes]:
    return sorted(message.value() for message in read_committed(kafka, topic, partitions))


@pytest.mark.needs("curl")
@pytest.mark.parametrize("formats", SEED)
async def test_the_seeds_own_commands_write_what_they_say(kafka, tmp_path, formats):
    require_tools("curl")
    own = CertificateAuthority(tmp_path).issue_certificate("sidecar")
    made = build_config(
        kafka.bootstrap_servers, [], [], sidecar={"producer": {}},
        listen={"tls": {"certificate": str(own), "key": str(own)}},
    )  # fmt: skip
    (tmp_path / "values.yml").write_text(VALUES)
    over = ["--values", str(tmp_path / "values.yml")] if formats == "binary-string" else []
    kafka.create_topic("test6", 1)
    async with running_gateway_process(
        made, command=COMMAND, arguments=over, ready=False
    ) as gateway:
        assert gateway.host == "https://127.0.0.1"
        await ready_at(gateway)
        line = SEED[formats] + f" --connect-to localhost:8443:127.0.0.1:{gateway.port} -sS"
        done = await asyncio.to_thread(
            subprocess.run, line, shell=True, capture_output=True, text=True, check=True, timeout=60
        )
    assert json.loads(done.stdout)["requestStatus"] == "OK", done.stdout
    found = [(message.key(), message.value()) for message in read_committed(kafka, "test6")]
    assert found == [(b"alice", b"abc"), (b"john", b"def"), (b"alex", b"xyz")]


async def ready_at(gateway: GatewayProcess) -> None:
    async with (
        asyncio.timeout(60),
        httpx.AsyncClient(base_url=gateway.base_url, verify=False, trust_env=False) as http,
    ):
        while (await http.get("/health/ready")).status_code != 200:
            pass


async def test_a_request_that_comes_again_is_written_once_at_any_replica(kafka, topic):
    name, made = topic(), config(kafka.bootstrap_servers)
    async with (
        running_gateway_process(made, command=COMMAND) as one,
        running_gateway_process(made, command=COMMAND) as other,
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
    transaction does not get through to the broker. Several that came again with the key took it
    over from each other without a pause, dozens of times, each with a line."""
    name = topic()
    made = config(kafka.bootstrap_servers, timeout="2s")
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        running_gateway_process(made, command=COMMAND) as good,
    ):
        assert (await post(good, name, "warm", key="warm")).status_code == 200
        behind = {**made, "kafka": {**made["kafka"], "servers": proxy.bootstrap.split(",")}}
        async with running_gateway_process(behind, command=COMMAND) as bad:
            assert (await post(bad, name, "also", key="also")).status_code == 200
            proxy.on_request = open_for_ever
            doomed = asyncio.create_task(post(bad, name, "a", "b", key="k"))
            async with asyncio.timeout(60):
                while len(await asyncio.to_thread(uncommitted, kafka, name)) < 4:
                    pass
            await bad.kill()
            await asyncio.gather(doomed, return_exceptions=True)
            twins = (post(good, name, "a", "b", key="k") for _ in range(6))
            answer, *others = await asyncio.gather(*twins)
            assert answer.status_code == 200, answer.text
            assert {each.text for each in others} == {answer.text}
            assert good.log.count("is taken over from") == 1
            again = await post(good, name, "a", "b", key="k")
            assert again.text == answer.text
    assert values(kafka, name) == [b"a", b"also", b"b", b"warm"]


async def test_a_repeat_is_answered_though_the_request_could_not_be_written_any_more(kafka, topic):
    """It was encoded before its key was looked up: 400 or 404 for records that are in Kafka."""
    name = topic()
    async with running_sidecar(kafka.bootstrap, **sections()) as http:
        first = await once(http, name, "a", "k")
        kafka.delete_topics()
        async with asyncio.timeout(60):
            while (await attempt(http, name, "a", "other")).status_code != 404:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        again = await once(http, name, "a", "k")
        assert (again.text, again.headers["Idempotent-Replayed"]) == (first.text, "true")


async def test_a_key_is_known_for_its_window_and_of_many_the_latest_are(kafka, topic):
    name = topic()
    async with running_sidecar(kafka.bootstrap, **sections(window="1s")) as http:
        first = await once(http, name, "a", "k")
        await until_new(http, name, "a", "k")
        assert first.json()["offsets"][0]["offset"] == 0
    async with running_sidecar(kafka.bootstrap, **sections(keys=2)) as http:
        for value in ("1", "2", "3", "3"):
            told = await once(http, name, value, value)
        assert told.headers["Idempotent-Replayed"] == "true"
        assert "Idempotent-Replayed" not in (await once(http, name, "1", "1")).headers
    assert values(kafka, name) == [b"1", b"1", b"2", b"3", b"a", b"a"]


def sections(**idempotency: Any) -> dict[str, Any]:
    own = {"topic": f"idempotency-{uuid.uuid4().hex[:8]}", **idempotency}
    return {"producer": {"idempotency": own}}


async def once(http: httpx.AsyncClient, topic: str, value: str, key: str) -> httpx.Response:
    answer = await attempt(http, topic, value, key)
    assert answer.status_code == 200, answer.text
    return answer


async def attempt(http: httpx.AsyncClient, topic: str, value: str, key: str) -> httpx.Response:
    body = {"valueFormat": "string", "records": [{"value": value}]}
    return await http.post(f"/producers/{topic}", json=body, headers={"Idempotency-Key": key})


async def until_new(http: httpx.AsyncClient, topic: str, value: str, key: str) -> httpx.Response:
    """Once the key is forgotten."""
    async with asyncio.timeout(60):
        while True:
            answer = await once(http, topic, value, key)
            if "Idempotent-Replayed" not in answer.headers:
                return answer
            await asyncio.sleep(0.1)


async def test_answers_are_the_same_when_their_topic_was_compacted(retention_kafka, topic):
    """What a key stood for before it was forgotten is gone then, and all others where they were."""
    kafka, name, log = retention_kafka, topic(), f"idempotency-{uuid.uuid4().hex[:8]}"
    configs = {
        "cleanup.policy": "compact", "segment.ms": "300", "min.cleanable.dirty.ratio": "0.01",
    }  # fmt: skip
    kafka.create_topic(log, 2, configs=configs)
    async with running_sidecar(kafka.bootstrap, **sections(topic=log, window="1s")) as http:
        await once(http, name, "again", "again")
        kept = await once(http, name, "kept", "kept")
        again = await until_new(http, name, "again", "again")
        async with asyncio.timeout(60):
            for number in itertools.count():
                await once(http, name, "more", f"{number}")
                if await asyncio.to_thread(first_of, kafka, log, 1) > 0:
                    break
    async with running_sidecar(kafka.bootstrap, **sections(topic=log, window="1h")) as http:
        for key, answer in (("again", again), ("kept", kept)):
            assert (await once(http, name, key, key)).text == answer.text
    assert values(kafka, name).count(b"again") == 2
    assert values(kafka, name).count(b"kept") == 1


def first_of(kafka: Any, topic: str, partition: int) -> int:
    """The first offset that is still there."""
    found = read_committed(kafka, topic, partition + 1)
    return min(each.offset() for each in found if each.partition() == partition)


@pytest.mark.parametrize("by_us", [True, False])
async def test_a_topic_of_keys_that_was_deleted_is_used_again(kafka, topic, caplog, by_us: bool):
    """Where nobody else made it anew, each request with a key was a 503, and the log had 16 lines
    a second.

    Args:
        by_us: The sidecar makes it anew.
    """
    name, log = topic(), f"idempotency-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(log, 2)
    async with running_sidecar(kafka.bootstrap, **sections(topic=log)) as http:
        for key in ("a", "b"):
            await once(http, name, key, key)
        await asyncio.to_thread(kafka.admin.delete_topic, log)
        if not by_us:
            await asyncio.to_thread(kafka.admin.create_topic, log, 2)
        async with asyncio.timeout(60):
            body = {"valueFormat": "string", "records": [{"value": "c"}]}
            while True:
                answer = await http.post(
                    f"/producers/{name}", json=body, headers={"Idempotency-Key": "c"}
                )
                if answer.status_code == 200:
                    break
                assert answer.status_code == 503, answer.text
        assert (await once(http, name, "c", "c")).text == answer.text
    assert values(kafka, name) == [b"a", b"b", b"c"]
    assert len([each for each in caplog.messages if each.startswith(f"topic={log} cause=")]) <= 3


async def test_a_record_for_a_topic_that_is_deleted_meanwhile_is_refused_in_time(kafka, topic):
    """It was in doubt, and its request unanswered, for two minutes whatever `timeout` said."""
    name = topic()
    body = {"valueFormat": "string", "records": [{"value": "a"}]}
    async with running_sidecar(kafka.bootstrap, producer={"timeout": "3s"}) as http:
        assert (await http.post(f"/producers/{name}", json=body)).status_code == 200
        await asyncio.to_thread(kafka.admin.delete_topic, name)
        answer = await http.post(f"/producers/{name}", json=body, timeout=60)
        assert answer.status_code in (404, 503), answer.text
        assert "may have been written" not in answer.text


async def test_an_owner_that_is_slow_and_alive_is_taken_over_from_and_tells_what_the_other_did(
    kafka, topic
):
    """It hears only when it is done that it has been fenced."""
    name, made = topic(), config(kafka.bootstrap_servers, timeout="3s")
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        running_gateway_process(made, command=COMMAND) as good,
    ):
        behind = {**made, "kafka": {**made["kafka"], "servers": proxy.bootstrap.split(",")}}
        async with running_gateway_process(behind, command=COMMAND) as slow:
            assert (await post(slow, name, "warm", key="warm")).status_code == 200
            proxy.on_request = open_for_ever
            late = asyncio.create_task(post(slow, name, "a", "b", key="k"))
            async with asyncio.timeout(60):
                while len(await asyncio.to_thread(uncommitted, kafka, name)) < 3:
                    pass
            answer = await post(good, name, "a", "b", key="k")
            assert answer.status_code == 200, answer.text
            assert "is taken over from" in good.log
            proxy.on_request = None
            told = await late
            if told.status_code == 503:  # it came back after its client's time: nobody knows
                assert {each["errorCode"] for each in told.json()["offsets"]} == {504}
                told = await post(slow, name, "a", "b", key="k")
            assert (told.status_code, told.text) == (200, answer.text)
            assert (await post(slow, name, "c", key="another")).status_code == 200
    assert values(kafka, name) == [b"a", b"b", b"c", b"warm"]


def open_for_ever(request: SeenRequest) -> bytes | None:
    """CONCURRENT_TRANSACTIONS, to whoever ends one; the broker never hears of it."""
    return struct.pack(">ih", 0, 51) if request.api_key == ApiKey.END_TXN else None


def uncommitted(kafka: Any, topic: str) -> list[Any]:
    """Records of open transactions, too."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers, "group.id": "nobody",
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
    async with running_gateway_process(config(kafka.bootstrap_servers), command=COMMAND) as gateway:
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


@asynccontextmanager
async def reading_until_a_transaction_ends(
    servers: str,
) -> AsyncIterator[tuple[KafkaProxy, httpx.AsyncClient]]:
    """A sidecar that cannot read from the end of its first transaction on, but can write."""
    async with KafkaProxy.wrap_cluster(servers) as proxy:

        def stop_reading(request: SeenRequest) -> None:
            if request.api_key == ApiKey.END_TXN and proxy.on_request is not None:
                proxy.on_request = None
                proxy.inject_error(ApiKey.FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)

        proxy.on_request = stop_reading
        own = sections(partitions=1)["producer"]
        async with running_sidecar(proxy.bootstrap.split(","), producer=own) as http:
            yield proxy, http


async def test_a_key_may_be_used_again_before_its_release_is_read(kafka, topic):
    """It was 422 until the partition, which had no leader for a moment, could be read again."""
    name = topic(configs={"max.message.bytes": "2000"})
    async with reading_until_a_transaction_ends(kafka.bootstrap_servers) as (proxy, http):
        refused = await attempt(http, name, "x" * 5000, "k")
        assert refused.status_code == 413
        claimed = asyncio.Event()

        def see_claim(request: SeenRequest) -> None:
            if request.api_key == ApiKey.PRODUCE:
                claimed.set()

        proxy.on_request = see_claim
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            second = group.create_task(attempt(http, name, "small", "k"))
            second.add_done_callback(lambda _: claimed.set())
            await claimed.wait()
            await proxy.restore_all()
        answer = second.result()
        assert answer.status_code == 200, answer.text
    assert values(kafka, name) == [b"small"]


async def test_an_answer_is_given_again_before_it_is_read(kafka, topic):
    """The request that came again waited until its partition could be read."""
    name = topic()
    async with reading_until_a_transaction_ends(kafka.bootstrap_servers) as (_, http):
        first = await once(http, name, "a", "k")
        again = await once(http, name, "a", "k")
        assert (again.text, again.headers["Idempotent-Replayed"]) == (first.text, "true")
        assert (await attempt(http, name, "b", "k")).status_code == 422
    assert values(kafka, name) == [b"a"]


async def test_told_to_end_it_answers_what_it_took_on(kafka, topic):
    name = topic()
    async with running_gateway_process(config(kafka.bootstrap_servers), command=COMMAND) as gateway:
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
