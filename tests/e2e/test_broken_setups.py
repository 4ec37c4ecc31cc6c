"""What the log says where Kafka cannot be used: one warning that names the cause, and no flood.

GATEWAY_SETUPS_SECONDS: for how long each set-up is watched (0.5). With `-s` the lines are printed.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AclOperation
from support.admin import KafkaAdmin
from support.brokers import running_kafka
from support.certificates import CertificateAuthority
from support.gateways import GatewayProcess, build_config, running_gateway_process
from support.local_kafka import RiggedKafka
from support.secure_kafka import PASSWORDS_BY_USER, BrokerSecurity, grant_access
from support.waiting import wait_until
from support.workers import running_workers

pytestmark = pytest.mark.needs("kafka")

SECONDS = float(os.environ.get("GATEWAY_SETUPS_SECONDS", "0.5"))
TOPIC = "orders"
SASL = {"mechanism": "plain", "username": "carol", "password": "pw"}


@dataclass
class Setup:
    """What is wrong.

    servers: as the gateway has them. text: what the warning must say. begin: what breaks it, once
    the gateway is there. lines: warnings that may be there at the beginning. is_lost: whether no
    broker can be used, so that /health/ready and `check --cluster` give the same reason.
    """

    servers: str
    text: str
    security: dict[str, Any] = field(default_factory=dict)
    topic: str = TOPIC
    begin: Callable[[], Awaitable[None]] | None = None
    lines: int = 1
    is_lost: bool = True


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("setups")


@pytest.fixture(scope="module")
def known(directory: Path) -> CertificateAuthority:
    return CertificateAuthority(directory, "known")


@pytest.fixture(scope="module")
def guarded(known: CertificateAuthority) -> Iterator[RiggedKafka]:
    """A broker that wants certificates, passwords and ACLs, each on a listener of its own."""
    security = BrokerSecurity(
        users=PASSWORDS_BY_USER,
        mechanisms=("PLAIN",),
        certificate=known.issue_certificate("broker"),
        authority=known.certificate_path,
        client_auth="required",
        acl=True,
    )
    with running_kafka(security.create_kafka()) as kafka:
        admin = KafkaAdmin(kafka.bootstrap)
        admin.create_topic(TOPIC, 3)
        grant_access(admin, "User:carol", TOPIC, AclOperation.DESCRIBE)
        yield kafka


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """A server that accepts connections and never answers."""
    server = await asyncio.start_server(_say_nothing, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def closed_port() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{bound.getsockname()[1]}"


def warnings(gateway: GatewayProcess) -> list[str]:
    """The lines of the log that say that something is wrong."""
    return [
        line for line in gateway.log.splitlines() if re.search(r"WARNING|ERROR|Traceback", line)
    ]


async def check(setup: Setup) -> None:
    """Watch the log of a gateway that one client asks for a topic."""
    kafka = {"security": setup.security} if setup.security else {}
    config = build_config(setup.servers, [setup.topic], kafka=kafka)
    async with (
        running_gateway_process(config, ready=False) as gateway,
        httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=300) as http,
    ):
        asking = asyncio.create_task(_ask(http, setup.topic))
        if setup.begin is not None:
            await setup.begin()
        told = lambda: any(re.search(setup.text, line) for line in warnings(gateway))  # noqa: E731
        await wait_until(told, lambda: f"'{setup.text}' in:\n{gateway.log}", 60)
        await asyncio.sleep(SECONDS)  # not a wait for anything: whatever comes may come
        asking.cancel()
        if setup.is_lost:
            await check_reasons(gateway, http, setup.servers)
        found = warnings(gateway)
        print(f"\n{len(found)} lines:", *found, sep="\n  ")
        assert len(found) <= setup.lines * (1 + SECONDS // 60), "\n".join(found)


async def check_reasons(gateway: GatewayProcess, http: httpx.AsyncClient, servers: str) -> None:
    """Check that the same sentence is in the log, in /health/ready and in `check --cluster`."""
    (line,) = [line for line in warnings(gateway) if "Kafka cause=" in line]
    sentence = line.split("cause=")[1].partition(": ")[2]
    (reason,) = (await http.get("/health/ready")).json()["reasons"]
    assert reason == f"no broker was reached: {sentence}"
    assert "<" not in sentence and "Errno" not in sentence and "; " in sentence
    subject = f"the bootstrap server at {servers} "
    assert sentence.startswith(subject)
    command = [sys.executable, "-m", "gateway", "check", str(gateway.config_path), "--cluster"]
    checked = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await checked.communicate()
    assert f"server {servers}: {sentence.removeprefix(subject)}" in output.decode()


async def _ask(http: httpx.AsyncClient, topic: str) -> None:
    while True:
        try:
            async with http.stream("GET", f"/events/{topic}") as answer:
                async for _ in answer.aiter_bytes():
                    pass
        except httpx.HTTPError:
            pass
        await asyncio.sleep(0.5)


async def test_nobody_listens():
    await check(Setup(closed_port(), "cause=connection"))


@pytest.mark.night
async def test_nobody_answers():
    async with silent() as server:
        await check(Setup(server, "cause=timeout"))


async def test_the_name_does_not_resolve():
    await check(Setup("broker.invalid:9092", "broker.invalid"))


async def test_the_topic_may_not_be_read(guarded: RiggedKafka):
    servers = ",".join(guarded.get_addresses("SASL"))
    await check(Setup(servers, "cause=access-denied", {"sasl": SASL}, lines=2, is_lost=False))


@pytest.mark.night
async def test_the_topic_is_not_there(guarded: RiggedKafka):
    servers = ",".join(guarded.bootstrap)
    await check(Setup(servers, "absent", topic="absent", is_lost=False))


@pytest.mark.night
async def test_a_broker_stands_still():
    with running_kafka(RiggedKafka()) as kafka:
        KafkaAdmin(kafka.bootstrap).create_topic(TOPIC, 3)
        (node,) = kafka.nodes

        async def freeze() -> None:
            node.freeze()

        try:
            await check(
                Setup(",".join(kafka.bootstrap), "cause=timeout", begin=freeze, is_lost=False)
            )
        finally:
            node.unfreeze()


@pytest.mark.night
async def test_partitions_have_no_leader():
    with running_kafka(RiggedKafka(3)) as kafka:
        KafkaAdmin(kafka.bootstrap).create_topic(TOPIC, assignment=[[1], [2], [3]])

        async def kill() -> None:
            kafka.nodes[2].kill()

        await check(
            Setup(",".join(kafka.bootstrap), "cause=no-leader", begin=kill, lines=2, is_lost=False)
        )


async def test_the_broker_names_an_address_that_nobody_reaches():
    """It answers where it was found, and names another address for its partitions."""
    host, port = closed_port().split(":")
    with running_kafka(RiggedKafka(advertised=lambda node: (host, int(port)))) as kafka:
        KafkaAdmin(kafka.bootstrap).create_topic(TOPIC, 3)
        await check(
            Setup(",".join(kafka.get_addresses("VIA")), "advertised.listeners", is_lost=False)
        )


async def test_an_outage_is_one_line_for_all_topics_and_workers():
    """Each bootstrap topic had a warning in each worker, and the first contact had no line."""
    with running_kafka(RiggedKafka()) as kafka:
        topics = [f"topic-{number}" for number in range(5)]
        for topic in topics:
            KafkaAdmin(kafka.bootstrap).create_topic(topic, 2)
        (node,) = kafka.nodes
        node.kill()
        config = build_config(kafka.bootstrap, topics, kafka={"bootstrap": topics})
        async with running_workers(config, 2, ready=False) as gateway:

            async def wait_for_line(text: str) -> None:
                await wait_until(
                    lambda: text in gateway.log, lambda: f"'{text}':\n{gateway.log}", 90
                )

            async def start_broker() -> None:
                await asyncio.to_thread(node.start)
                await asyncio.to_thread(kafka.wait_ready)

            await wait_for_line("Kafka cause=connection")
            await start_broker()
            await wait_for_line("Kafka is connected: cluster ")
            node.kill()
            await wait_until(
                lambda: gateway.log.count("Kafka cause=") == 2, gateway.read_log_tail, 60
            )
            await start_broker()
            await wait_for_line("Kafka answers again after ")
            lines = [line for line in gateway.log.splitlines() if ".outages: " in line]
        print("", *lines, sep="\n  ")
        texts = [line.partition(".outages: ")[2] for line in lines]
        starts = ["Kafka cause=", "Kafka is connected: ", "Kafka cause=", "Kafka answers again "]
        assert len(texts) == len(starts), texts
        assert all(map(str.startswith, texts, starts)), texts
        assert ", 1 broker after " in texts[1]
