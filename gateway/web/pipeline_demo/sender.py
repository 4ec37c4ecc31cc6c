"""Create the topics of the shop, and write its events when they happen."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.pipeline.generate import ShopGenerator, ShopTraffic, generate_users
from gateway.web.demo.record_sender import open_sender

from .component_states import ComponentStates

TOPIC_PARTITIONS = {
    "clicks": 2, "orders": 2, "payments": 1, "users": 1, "visits": 2, "settled": 2, "known": 2,
    "progress": 1, "parts": 1,
}  # fmt: skip
SEND_INTERVAL_S = 0.02  # seconds between two looks at which events are due


def create_topics(servers: Sequence[str]) -> None:
    """Create the topics. Their partition counts differ on purpose: joins do not need equal ones."""
    admin = AdminClient({"bootstrap.servers": ",".join(servers)})
    compacted = {"cleanup.policy": "compact"}
    topics = [
        NewTopic(name, count, 1, config=compacted if name == "users" else {})
        for name, count in TOPIC_PARTITIONS.items()
    ]
    for future in admin.create_topics(topics).values():
        future.result(30)


async def send_events(
    servers: Sequence[str], traffic: ShopTraffic, states: ComponentStates
) -> None:
    """Write users, and then events, until cancelled."""
    async with open_sender(servers) as sender:
        users = [
            await sender.send("users", key.encode(), _encode_json(row))
            for key, row in generate_users(traffic)
        ]
        await asyncio.gather(*users)
        rates = f"{traffic.clicks:g} clicks and {traffic.orders:g} orders a second"
        states.report_state("Shop", "running", rates)
        shop = ShopGenerator(traffic, time.time())
        while True:
            for event in shop.take_events(time.time()):
                await sender.send(event.topic, event.key.encode(), _encode_json(event.value))
            await asyncio.sleep(SEND_INTERVAL_S)


def _encode_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
