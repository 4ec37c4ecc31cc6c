"""The reply to a request that did not wait, asked of whoever is there: of a worker that never heard
of it, and of a gateway that was started later. On a real broker, which finds records by time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
from support.brokers import KafkaCluster
from support.gateways import (
    GatewayProcess,
    build_config,
    create_http_client,
    running_gateway_process,
)
from support.service import running_service
from support.waiting import WAIT_TIMEOUT_S, wait_until
from support.workers import running_workers

# Held by the service: a reply that is there before Kafka confirms the request is the answer itself.
REQUEST = b'{"hold": true, "body": "the result"}'


def config(kafka: KafkaCluster, requests: str, replies: str) -> dict[str, Any]:
    with_ = {
        "capability": "produce", "topic": requests, "replyTo": replies,
        "async": {"location": "/later/${correlationId}"},
    }  # fmt: skip
    routes = [{"when": [{"path": "/ask"}], "with": with_}]
    return build_config(kafka.bootstrap_servers, [requests, replies], routes)


async def asked(gateway: GatewayProcess, location: str) -> tuple[int, str]:
    """By a connection of its own."""
    async with httpx.AsyncClient(
        base_url=gateway.base_url, trust_env=False, timeout=2 * WAIT_TIMEOUT_S
    ) as http:
        answer = await http.get(location, headers={"Prefer": "wait=60"})
        return answer.status_code, answer.text


async def test_any_worker_knows_a_reply_also_one_that_was_not_there(
    kafka: KafkaCluster, topic: Callable[..., str]
):
    made = config(kafka, topic(2), topic(2))
    requests, replies = (each["name"] for each in made["kafka"]["topics"])
    async with running_service([kafka.bootstrap_servers], requests) as service:
        async with running_workers(made) as gateway:
            async with create_http_client(gateway) as http:
                later = {"Prefer": "respond-async"}
                answer = await http.post("/ask", content=REQUEST, headers=later)
            assert answer.status_code == 202, answer.text
            location = answer.headers["location"]
            await wait_until(lambda: service.held_requests, "the request")
            await service.answer_held()
            answers = await asyncio.gather(*(asked(gateway, location) for _ in range(24)))
            assert set(answers) == {(200, "the result")}
        async with running_gateway_process(config(kafka, requests, replies)) as another:
            assert await asked(another, location) == (200, "the result")
        assert len(service.requests) == 1
