"""Which records an operator may look at, how many, and as what they are shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from support.admin_api import ADMIN_SECTION, open_admin_api
from support.brokers import embedded_kafka
from support.gateways import build_config, running_gateway
from support.records import RecordToSend, produce_records

from gateway.config import Settings
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.console.kafka_lookup import (
    MAX_SHOWN_BYTES,
    MAX_SHOWN_RECORDS,
    list_served_topics,
)

kafka = embedded_kafka({"orders": 2, "strict": 1, "lax": 1, "large": 1, "secret": 1})

USERS = {"eve": {"token": "eve"}, "ada": {"token": "ada", "roles": ["support"]}}
GUARDED = {"guards": {"ops": {"type": "inline", "users": USERS}}}
LONG = {"model": "long"}


@asynccontextmanager
async def open_admin(
    kafka: EmbeddedKafka, token: str = "", **admin: Any
) -> AsyncIterator[httpx.AsyncClient]:
    topics = [
        {"name": "orders"},
        {"name": "large"},
        {"name": "strict", "value": LONG},
        {"name": "lax", "value": {**LONG, "onInvalid": "skip"}},
    ]
    guards = GUARDED if "guarded" in admin else {}
    config = build_config(kafka.bootstrap, topics, admin={**ADMIN_SECTION, **admin}, **guards)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with running_gateway(config) as gateway, open_admin_api(gateway, headers) as http:
        yield http


async def test_only_who_may_look_at_records_is_shown_them(kafka: EmbeddedKafka):
    path, guarded = "/console/records?topic=orders", {"ops": []}
    async with open_admin(kafka) as http:
        refused = await http.get(path)
        assert refused.status_code == 403 and "set admin.records" in refused.json()["detail"]
    for token, status in (("eve", 403), ("ada", 200)):
        async with open_admin(kafka, token, guarded=guarded, records={"ops": ["support"]}) as http:
            assert (await http.get(path)).status_code == status


async def test_only_topics_that_are_served_are_read(kafka: EmbeddedKafka):
    async with open_admin(kafka, records={}) as http:
        for query, hint in (
            ("topic=secret", "no topic 'secret' is served here"),
            ("topic=ordesr", "did you mean 'orders'"),
            ("topic=orders&partition=7", "orders has no partition 7"),
        ):
            refused = await http.get(f"/console/records?{query}")
            assert refused.status_code == 404 and hint in refused.json()["detail"]


async def test_the_newest_come_first_and_only_so_many(kafka: EmbeddedKafka):
    count = MAX_SHOWN_RECORDS + 10
    records = [
        RecordToSend(b"%d" % n, b"k", n % 2, 1_000 + n, (("trace", b"t"),)) for n in range(count)
    ]
    await produce_records(kafka.bootstrap, "orders", records)
    large = [RecordToSend(bytes([65 + n]) * (MAX_SHOWN_BYTES * 6 // 10)) for n in range(3)]
    await produce_records(kafka.bootstrap, "large", large)
    async with open_admin(kafka, records={}) as http:
        found = (await http.get("/console/records?topic=orders")).json()
        shown = [each["record"] for each in found["records"]]
        assert [int(each["value"]) for each in shown] == list(range(count - 1, 9, -1))
        last = (count - 1) % 2, (count - 1) // 2, "k", [["trace", "t"]]
        assert tuple(shown[0][name] for name in ("partition", "offset", "key", "headers")) == last
        assert (found["partitions"], found["skipped"]) == (2, 0)
        found = (await http.get("/console/records?topic=orders&partition=1")).json()
        assert {each["record"]["partition"] for each in found["records"]} == {1}
        found = (await http.get("/console/records?topic=large")).json()
        assert [each["record"]["value"][0] for each in found["records"]] == ["C"]


async def test_a_record_that_does_not_match_its_model_is_shown_with_the_reason(
    kafka: EmbeddedKafka,
):
    async with open_admin(kafka, records={}) as http:
        for topic, reason in (("strict", "8 bytes"), ("lax", "streams skip it")):
            await produce_records(kafka.bootstrap, topic, [b"seven", (7).to_bytes(8)])
            found = (await http.get(f"/console/records?topic={topic}")).json()
            fine, bad = found["records"]
            assert fine["record"]["value"] == "7" and fine["problem"] is None
            assert bad["record"]["value"] == "seven" and reason in bad["problem"]


@pytest.mark.parametrize(
    ("route", "served"),
    [
        ({"path": "/a", "topics": ["orders", "stock"]}, ["east/orders", "east/stock"]),
        ({"path": "/{of}", "topic": "shop-${params.of}", "kafka": "east"}, ["east/shop-eu"]),
        ({"path": "/{t}", "topic": "${params.t}", "allow": ["o*"], "kafka": "east"}, []),
    ],
    ids=["named", "in-part", "chosen-by-clients"],
)
def test_topics_of_routes_and_of_the_sidecars_groups_are_served(
    route: dict[str, Any], served: list[str]
):
    group = {"group": "g", "topics": ["bills"], "backend": {"host": "http://127.0.0.1:1"}}
    east, west = ["orders", "stock", "shop-eu"], ["bills"]
    settings = Settings.model_validate(
        {
            "kafka": {
                "east": {"servers": ["127.0.0.1:1"], "topics": east},
                "west": {"servers": ["127.0.0.1:1"], "topics": west},
            },
            "routes": [route],
            "sidecar": {"kafka": "west", "reactive": {"groups": group}},
        }
    )
    assert list_served_topics(settings) == [*served, "west/bills"]
