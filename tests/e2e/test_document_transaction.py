"""Conditions of writes while a transaction is open, which only a real broker has."""

from __future__ import annotations

import json

from support.gateways import build_config, create_http_client, running_gateway
from support.records import open_transaction


async def test_nothing_is_compared_with_a_record_that_is_no_longer_the_latest(kafka, topic):
    """Readers see nothing behind an open transaction: two writes with one ETag were both done, and
    the second overwrote the first."""
    name = topic()
    when = [{"path": "/{id}", "method": "PUT"}]
    write = {"when": when, "with": {"capability": "produce", "topic": name, "key": "${params.id}"}}
    filters = [{"key": "${params.id}"}]
    read = {
        "when": [{"path": "/{id}"}],
        "with": {"capability": "fetch", "topic": name, "filters": filters},
    }
    config = build_config(kafka.bootstrap, [name], [read, write])
    async with running_gateway(config) as gateway, create_http_client(gateway) as http:

        async def put(number: int, **headers: str) -> int:
            body = json.dumps({"n": number}).encode()
            answer = await http.put("/a", content=body, headers=headers)
            if answer.status_code == 503:
                assert answer.json()["title"] == "Transaction open"
            return answer.status_code

        assert await put(1) == 201
        known = {"If-Match": (await http.get("/a")).headers["etag"]}
        async with open_transaction(kafka.bootstrap) as holding:
            await holding.write_records(name, [b"open"])
            assert await put(2) == 201
            assert await put(3, **known) == 503
            assert await put(3, **{"If-None-Match": "*"}) == 503
        assert await put(3, **known) == 412
        assert (await http.get("/a")).json() == {"n": 2}
