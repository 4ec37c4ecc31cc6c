"""A login or a right that Kafka refused for a while comes back for all partitions at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclOperation,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from support.admin import KafkaAdmin
from support.brokers import running_kafka
from support.clients.raw import RawClient
from support.gateways import GatewayProcess, build_config, running_gateway_process
from support.local_kafka import RiggedKafka
from support.oracle import StreamOracle
from support.secure_kafka import BrokerSecurity, grant_access, revoke_access
from support.waiting import wait_until

pytestmark = [pytest.mark.needs("kafka"), pytest.mark.night]

PARTITIONS = 12
REFUSED_SECONDS = 12.0
"""For which Kafka refuses: two attempts of a partition that is tried by itself, and more."""

LINES = 3
"""Of the log, in which all partitions resume: of either lane, and of those that were late."""

SASL = {"mechanism": "scram-sha-256", "username": "carol", "password": "right"}
PRINCIPAL = "User:carol"

Step = Callable[[RiggedKafka], None]


@pytest.fixture
def kafka() -> Iterator[RiggedKafka]:
    security = BrokerSecurity(users={"carol": "right"}, mechanisms=("SCRAM-SHA-256",), acl=True)
    properties = {"connections.max.reauth.ms": "2000"}
    with running_kafka(security.create_kafka(properties=properties)) as kafka:
        admin = KafkaAdmin(kafka.bootstrap)
        admin.create_topic("orders", PARTITIONS)
        grant_access(admin, PRINCIPAL, "orders", AclOperation.READ, AclOperation.DESCRIBE)
        yield kafka


def config(kafka: RiggedKafka) -> dict[str, Any]:
    servers = ",".join(kafka.get_addresses("SASL"))
    return build_config(servers, ["orders"], kafka={"security": {"sasl": SASL}})


def set_password(kafka: RiggedKafka, password: str) -> None:
    """It is asked for at the end of each session, of two seconds."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion("carol", info, password.encode())
    admin = KafkaAdmin(kafka.bootstrap)
    for done in admin.client.alter_user_scram_credentials([change]).values():
        done.result(30)


def forbid(kafka: RiggedKafka) -> None:
    """Take back that the topic may be read; it may still be described."""
    revoke_access(KafkaAdmin(kafka.bootstrap), PRINCIPAL, "orders", AclOperation.READ)


def permit(kafka: RiggedKafka) -> None:
    """Let the topic be read again."""
    grant_access(KafkaAdmin(kafka.bootstrap), PRINCIPAL, "orders", AclOperation.READ)


def resumed(log: str) -> list[int]:
    """Return how many partitions each line of the log tells of that resume."""
    found = []
    for line in log.splitlines():
        if "FETCH resumed" in line:
            many = re.search(r"broker=\d+: (\d+) partitions", line)
            found.append(1 if many is None else int(many[1]))
    return found


async def read_all(oracle: StreamOracle, client: RawClient, rounds: int) -> None:
    """Write to every partition, and wait until the client has it from each."""
    await oracle.produce_records("orders", PARTITIONS * 10)
    wanted = rounds * PARTITIONS * 10
    await client.wait_for_events(
        lambda events: sum(each["event"] == "message" for each in events) >= wanted
    )


async def all_resume_together(gateway: GatewayProcess, since: int) -> None:
    def lines() -> list[int]:
        return resumed(gateway.log[since:])

    await wait_until(lambda: sum(lines()) >= PARTITIONS, lambda: str(lines()))
    assert len(lines()) <= LINES, lines()


async def refuse_for_a_while(
    kafka: RiggedKafka, refuse: Step, cause: str, allow_again: Step
) -> None:
    """Let a client read, let Kafka refuse and allow again, and see all partitions come back."""
    async with (
        StreamOracle(",".join(kafka.bootstrap)) as oracle,
        running_gateway_process(config(kafka)) as gateway,
        RawClient(f"{gateway.base_url}/events/orders") as client,
    ):
        await client.wait_for_events(1)
        await read_all(oracle, client, 1)
        since = len(gateway.log)
        await asyncio.to_thread(refuse, kafka)
        await wait_until(lambda: f"cause={cause}" in gateway.log[since:], gateway.read_log_tail)
        await asyncio.sleep(REFUSED_SECONDS)
        since = len(gateway.log)
        await asyncio.to_thread(allow_again, kafka)
        await all_resume_together(gateway, since)
        await read_all(oracle, client, 2)


async def test_a_login_that_works_again_brings_all_partitions_back(kafka: RiggedKafka):
    """They came back one by one, over the one connection that worked, for 54 s."""
    refuse, allow_again = (
        partial(set_password, password="another"),
        partial(set_password, password="right"),
    )
    await refuse_for_a_while(kafka, refuse, "authentication", allow_again)


async def test_a_topic_that_may_be_read_again_is_read_whole(kafka: RiggedKafka):
    """Its partitions came back one by one, for 33 s."""
    await refuse_for_a_while(kafka, forbid, "access-denied", permit)
