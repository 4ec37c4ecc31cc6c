"""What the sidecar answers is what its specification says, whatever it is asked."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from support.backend import running_backend
from support.brokers import KafkaCluster
from support.dead_letters import write_dead_letters
from support.ksqldb import running_ksqldb
from support.sidecars import running_sidecar, wait_until_ready

EXAMPLES = int(os.environ.get("GATEWAY_CONTRACT_EXAMPLES", "0"))
"""Requests of each operation and kind; by chance, where it is given."""

START_ATTEMPTS = 60  # of a replay, a second apart: its sidecar reads what replays there are
INSTANCES = {"contract": False, "subscribed": False, "confluent": True}


@dataclass
class World:
    """replays: ids of some."""

    url: str
    group: str
    topic: str
    other: str
    replays: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        """Instances of both dialects are there, one reads a topic, and there is a replay."""
        v2 = {"Content-Type": "application/vnd.kafka.v2+json"}
        with httpx.Client(base_url=self.url, trust_env=False, timeout=60) as http:
            instances = f"/consumers/{self.group}"
            for name, confluent in INSTANCES.items():
                headers = v2 if confluent else None
                made = http.post(instances, json={"name": name}, headers=headers)
                assert made.status_code in (200, 409), made.text
            reads = f"{instances}/instances/subscribed/subscriptions"
            assert http.post(reads, json={"topics": [self.topic]}).status_code in (204, 409)
            if not self.replays:
                asked = {"topic": self.topic, "destination": "topic"}
                for _ in range(START_ATTEMPTS):
                    made = http.post("/replays", json={**asked, "destinationTopic": self.other})
                    if made.status_code != 503:
                        break
                    time.sleep(1)
                assert made.status_code == 202, made.text
                self.replays.append(made.json()["id"])

    @property
    def known(self) -> dict[str, list[Any]]:
        return {
            "topic": [self.topic],
            "topics": [[self.topic]],
            "topic_pattern": [self.topic],
            "partition": [0, 1],
            "offset": [0, 1],
            "group": [self.group],
            "instance": [*INSTANCES],
            "assault": ["latency"],
            "destination": ["topic"],
            "destinationTopic": [self.other],
            "id": self.replays,
        }


@asynccontextmanager
async def kept_in(kafka: KafkaCluster, topic: str) -> AsyncIterator[dict[str, str]]:
    """Topics of the sidecar's own, which no other test finds."""
    names = {what: f"{topic}.{what}" for what in ("idempotency", "audit", "replay", "dlq")}
    try:
        yield names
    finally:
        for name in names.values():
            if kafka.admin.topic_exists(name):
                kafka.admin.delete_topic(name)


@pytest.mark.needs("schemathesis", "hypercorn")
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
async def test_no_request_that_can_be_made_up_is_answered_otherwise_than_specified(
    kafka: KafkaCluster,
):
    from support.contract import ContractTester

    topic, other = kafka.create_unique_topic(partitions=2), kafka.create_unique_topic(partitions=2)
    group = f"group-{uuid.uuid4().hex[:8]}"
    async with (
        kept_in(kafka, topic) as kept,
        running_backend() as backend,
        running_ksqldb() as ksqldb,
    ):
        reactive = {
            "group": group,
            "topics": [topic],
            "valueFormat": "json",
            "backend": {"host": backend.base_url},
        }
        sections = {
            "producer": {"idempotency": {"topic": kept["idempotency"]}},
            "consumer": {"requestTimeout": "50ms"},
            "reactive": {"groups": reactive},
            "ksqldb": {"url": ksqldb.url},
            "admin": {"chaos": True},
            "audit": {"topic": kept["audit"]},
            "deadLetter": {},
            "replay": {"topic": kept["replay"]},
        }
        async with running_sidecar(kafka.bootstrap_servers, **sections) as http:
            await wait_until_ready(http)
            write_dead_letters(kafka, topic, range(4), group)
            world = World(str(http.base_url), group, topic, other)
            document = (await http.get("/openapi.json")).json()
            asker = ContractTester(
                document,
                world.url,
                world.prepare,
                world.known,
                fixed_values={"enabled": False},  # the chaos monkey would answer as it likes
                excluded_operations=frozenset({"shutdown"}),
            )
            await asyncio.to_thread(asker.test_operations, EXAMPLES or 3, is_random=EXAMPLES > 0)
            assert (await http.get("/health/readiness")).text == "OK"
    good = [name for name, told in asker.statuses.items() if any(each < 300 for each in told)]
    assert len(good) > len(asker.statuses) / 2, "hardly anything was asked for that there is"
