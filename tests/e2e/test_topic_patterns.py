"""Topics that come and go while clients ask for them by a pattern, on a real broker."""

from __future__ import annotations

import asyncio
import uuid

import httpx
from support.gateways import build_config, create_http_client, running_gateway_process
from support.records import produce_records
from support.sse import parse_stream


async def test_a_pattern_leaves_out_what_is_not_there_and_finds_it_when_it_comes(kafka):
    """One topic that was deleted, or configured and absent, made all others a 404, which ends an
    EventSource for good."""
    prefix = f"p{uuid.uuid4().hex[:8]}"
    one, other, absent = (f"{prefix}-{name}" for name in ("one", "other", "absent"))
    for name in (one, other):
        kafka.admin.create_topic(name)
        await produce_records(kafka.bootstrap, name, [name.encode()])
    route = {
        "when": [{"path": "/p/{t}"}],
        "with": {"topics": ["${params.t}"], "allow": [f"{prefix}-*"], "format": "value"},
    }

    async def until_read(http: httpx.AsyncClient, *wanted: str) -> None:
        """A topic that is just deleted may be a 503 for a moment, and never a 404."""
        url, query = f"/p/{prefix}-*", {"from": "earliest", "until": "latest"}
        async with asyncio.timeout(60):
            while True:
                answer = await http.get(url, params=query)
                assert answer.status_code in (200, 503), answer.text
                if {event.data for event in parse_stream(answer.content)}.issuperset(wanted):
                    return
                await asyncio.sleep(0.05)

    config = build_config(kafka.bootstrap, [absent], [route])
    try:
        async with running_gateway_process(config) as gateway, create_http_client(gateway) as http:
            await until_read(http, one, other)
            await asyncio.to_thread(kafka.admin.delete_topic, other)
            await until_read(http, one)
            kafka.admin.create_topic(absent)
            await produce_records(kafka.bootstrap, absent, [absent.encode()])
            await until_read(http, one, absent)
    finally:
        for name in (one, other, absent):
            kafka.admin.delete_topic(name)
