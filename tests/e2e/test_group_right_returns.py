"""The right to read with a group is taken away for a while: the group comes back by itself."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, ResourceType
from support.admin import KafkaAdmin
from support.backend import running_backend
from support.instances import ConsumerInstance, get_offsets
from support.local_kafka import RiggedKafka
from support.reactive import build_settings
from support.secure_kafka import grant_access, revoke_access
from support.sidecars import running_sidecar, wait_until_ready
from support.waiting import WAIT_TIMEOUT_S, wait_until

PRINCIPAL = "User:carol"
SASL = {"sasl": {"mechanism": "plain", "username": "carol", "password": "pw"}}


def permit(admin: KafkaAdmin, group: str) -> None:
    """Let the group be read with."""
    grant_access(admin, PRINCIPAL, group, AclOperation.READ, resource_type=ResourceType.GROUP)


def forbid(admin: KafkaAdmin, group: str) -> None:
    """Take back that the group may be read with."""
    revoke_access(admin, PRINCIPAL, group, AclOperation.READ, resource_type=ResourceType.GROUP)


def write(kafka: RiggedKafka, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": ",".join(kafka.bootstrap)})
    for n in numbers:
        producer.produce(topic, json.dumps({"n": n}).encode())
    assert producer.flush(30) == 0


async def until_refused(http: httpx.AsyncClient, group: str, instance: ConsumerInstance) -> None:
    """Wait until both groups are refused, and see that everybody who asks is told."""
    state: Mapping[str, Any] = {}
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while state.get("state") != "FAILED":  # with its failure at once
            state = (await http.get(f"/reactive/{group}")).json()
            await asyncio.sleep(0.05)
        assert "READ" in state["failure"] or "uthoriz" in state["failure"], state["failure"]
        assert state["partitions"] == []
        assert (await http.get("/health/readiness")).status_code == 503
        while True:
            answer = await instance.send_request("GET", "/records", timeout=100)
            if answer.status_code != 200:
                break
    assert (answer.status_code, answer.json()["code"]) == (409, "GROUP_FAILED"), answer.text


@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.night)])
async def test_a_group_whose_right_is_taken_away_and_given_back_goes_on(
    session_secured: RiggedKafka, protocol: str, caplog: pytest.LogCaptureFixture
):
    """A time without the right made it FAILED until the sidecar was started anew.

    What could not be committed without the right is committed within half a second of its return,
    which may be after the last record was processed.
    """
    caplog.set_level(logging.INFO, "gateway")
    kafka, admin = session_secured, KafkaAdmin(session_secured.bootstrap)
    topic, active = (f"{what}-{uuid.uuid4().hex[:8]}" for what in ("topic", "active"))
    admin.create_topic(topic)
    grant_access(admin, PRINCIPAL, topic, AclOperation.READ)
    member = {"groupProtocol": protocol, "sessionTimeout": "6s", "heartbeatInterval": "500ms"}
    async with running_backend() as backend:
        reactive = build_settings(backend, topic, **member)
        groups = (reactive["group"], active)
        for group in groups:
            permit(admin, group)
        parts = {"consumer": member, "reactive": {"groups": [reactive]}}
        async with running_sidecar(kafka.get_addresses("SASL"), security=SASL, **parts) as http:
            instance = await ConsumerInstance.create_instance(http, active)
            await instance.subscribe(topic)
            write(kafka, topic, range(3))
            await wait_until(lambda: len(backend.processed_records) >= 3, "the first records")
            assert get_offsets(await instance.poll_until(3)) == [0, 1, 2]
            await wait_until_ready(http)

            for group in groups:
                forbid(admin, group)
            await until_refused(http, reactive["group"], instance)
            write(kafka, topic, range(3, 6))
            for group in groups:
                permit(admin, group)

            await wait_until_ready(http)
            await wait_until(
                lambda: set(get_offsets(backend.processed_records)) == set(range(6)), "all"
            )
            seen: set[int] = set()
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while not seen >= {3, 4, 5}:
                    answer = await instance.send_request("GET", "/records", timeout=1000)
                    if answer.status_code == 200:
                        seen |= set(get_offsets(answer.json()))
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while (await http.get(f"/reactive/{groups[0]}")).json()["failure"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await instance.delete_instance()
    for group in groups:
        lines = [each for each in caplog.messages if each.startswith(f"group={group} ")]
        assert len(lines) == 2, lines
        assert "cause=access-denied: " in lines[0] and "can be used again" in lines[1]
