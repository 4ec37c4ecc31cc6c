"""Consumer instances where no group is needed: who may, Kafka away, the sidecar's end."""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.brokers import embedded_kafka
from support.gateways import build_config, create_http_client, running_gateway_process
from support.instances import ConsumerInstance
from support.raw_produce import produce_raw
from support.record_sets import ZSTD, BatchRecord
from support.sidecars import running_sidecar, wait_until_ready
from support.waiting import WAIT_TIMEOUT_S

from gateway.kafka.fetch.record_batch import MAX_DECOMPRESSED_BYTES

kafka = embedded_kafka({"t": 1, "written": 1})

V2 = {"accept": "application/vnd.kafka.v2+json"}


def build_user(token: str, *roles: str) -> dict[str, Any]:
    return {"token": token, "roles": list(roles)}


GUARDS = {
    "users": {
        "type": "inline",
        "credentials": {"headers": {"authorization": "Bearer {credentials}"}},
        "users": {
            "alice": build_user("a", "kafka:w", "kafka:r"),
            "bob": build_user("b", "kafka:w", "kafka:r"),
            "writer": build_user("w", "kafka:w"),
        },
    }
}


async def test_an_instance_is_its_makers_and_reading_needs_its_scope(kafka):
    options: Any = {"consumer": {}, "guarded": {"users": []}}
    async with running_sidecar(kafka.bootstrap, guards=GUARDS, **options) as http:
        await wait_until_ready(http)

        async def request_status(
            method: str, path: str, token: str, code: int | None = None
        ) -> int:
            headers = {"authorization": f"Bearer {token}", **(V2 if code else {})}
            answer = await http.request(method, path, headers=headers)
            if code is not None:
                assert answer.json()["error_code"] == code
            return answer.status_code

        alice = {"authorization": "Bearer a"}
        created = await http.post("/consumers/g", json={"name": "mine"}, headers=alice)
        assert created.status_code == 200
        assert (await http.post("/consumers/g", json={})).status_code == 401
        mine = "/consumers/g/instances/mine"
        assert await request_status("GET", f"{mine}/subscriptions", "a") == 200
        assert await request_status("GET", f"{mine}/subscriptions", "b") == 404
        assert await request_status("GET", f"{mine}/records", "w") == 403
        assert await request_status("GET", f"{mine}/records", "w", 40301) == 403
        assert await request_status("DELETE", mine, "b") == 404
        assert await request_status("GET", "/topics", "w", 40301) == 403
        assert await request_status("DELETE", mine, "a") == 204


@pytest.mark.parametrize("group", ["billing/eu", "billing/"])
async def test_the_name_of_a_group_may_have_slashes(kafka, group):
    """The path was split at `%2F`: a group with one was a 404, and `billing/` meant `billing`."""
    path = f"/consumers/{quote(group, safe='')}"
    async with running_sidecar(kafka.bootstrap, consumer={}) as http:
        created = (await http.post(path, json={"name": "one"})).json()
        instance = f"{path}/instances/one"
        assert created["baseUri"] == str(http.base_url).rstrip("/") + instance
        assert (await http.delete(instance)).status_code == 204
        gone = (await http.get(f"{instance}/records")).json()
        assert gone["message"] == f"one of group {group} was deleted"
        scrape = (await http.get("/metrics")).text
        assert 'endpoint="DELETE /consumers/{group}/instances/{instance}",status="204"} 1' in scrape


async def test_an_offset_beyond_the_end_is_neither_a_position_nor_committed(kafka):
    """The group went on at the end: what it had not read was passed over, by a typo."""
    async with running_sidecar(kafka.bootstrap, consumer={}) as http:
        instance = await ConsumerInstance.create_instance(http, autoCommitEnable="false")
        await instance.assign("t", 0)
        offsets = {"offsets": [{"topic": "t", "partition": 0, "offset": 10**12}]}
        for path in ("/positions", "/offsets"):
            answer = await instance.send_request("POST", path, offsets)
            assert (answer.status_code, answer.json()["code"]) == (400, "OFFSET_OUT_OF_RANGE")


@pytest.mark.parametrize(
    ("body", "query", "key"),
    [
        ({"format": "json"}, "keyFormat=string&", "ada"),
        ({"format": "json", "keyFormat": "string"}, "", "ada"),
        ({"valueFormat": "json"}, "", "YWRh"),
        ({}, "valueFormat=json&headerFormat=text&", "YWRh"),
    ],
)
async def test_keys_may_have_another_format_than_values_in_v2(kafka, body, query, key):
    """The options were accepted and changed nothing."""
    headers = [{"key": "h", "value": "eA=="}]
    written = {"key": "YWRh", "value": "eyJuIjogMX0=", "headers": headers}
    async with running_sidecar(kafka.bootstrap, consumer={}, producer={}) as http:
        await wait_until_ready(http)
        assert (await http.post("/topics/written", json={"records": [written]})).status_code == 200
        created = await http.post("/consumers/g", json=body, headers=V2)
        instance = ConsumerInstance(http, "g", created.json()["instance_id"])
        await instance.assign("written", 0)
        seek = {"partitions": [{"topic": "written", "partition": 0}]}
        await instance.send_request("POST", "/positions/beginning", seek)
        polled = await http.get(f"{instance.path}/records?{query}timeout=30000", headers=V2)
        record = polled.json()[0]
        assert (record["key"], record["value"]) == (key, {"n": 1})
        is_text = "headerFormat" in query
        first = record["headers"]["h"] if is_text else record["headers"][0]
        assert first == ("x" if is_text else headers[0])
        assert polled.headers["content-type"] == "application/vnd.kafka.json.v2+json"


async def test_while_kafka_is_unreachable_a_request_gets_a_retry_time(kafka):
    nowhere = "127.0.0.1:1"
    async with running_sidecar(nowhere, consumer={}) as http:
        instance = await ConsumerInstance.create_instance(http)

        async def check_unavailable(answer: httpx.Response) -> bool:
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
            return True

        subscribed = await instance.send_request("POST", "/subscriptions", {"topics": ["t"]})
        assert (
            await check_unavailable(subscribed) and subscribed.json()["code"] == "KAFKA_UNAVAILABLE"
        )
        topics = await http.get("/topics", headers=V2)
        assert await check_unavailable(topics) and topics.json()["error_code"] == 50003
        assert await check_unavailable(await http.get("/topics/t/partitions/0/records?offset=0"))


async def test_a_batch_that_cannot_be_read_here_is_named_and_not_passed_over(kafka):
    """A read by offset went on behind it, and so did a poll, which committed that."""
    kafka.create_topic("large")
    for items in ([BatchRecord(0)], [BatchRecord(0, bytes(MAX_DECOMPRESSED_BYTES + 1))]):
        produce_raw(kafka.bootstrap[0], "large", 0, items, ZSTD)
    place = {"topic": "large", "partition": 0}
    dead_letter = [{"record": {**place, "offset": 1}, "processed": False}]
    async with running_sidecar(kafka.bootstrap, consumer={}, deadLetter={}) as http:
        path = "/topics/large/partitions/0/records?timeout=60000&offset="
        assert [record["offset"] for record in (await http.get(f"{path}0")).json()] == [0]
        instance = await ConsumerInstance.create_instance(http, autoOffsetReset="earliest")
        await instance.assign("large", 0)
        assert len((await instance.send_request("GET", "/records", timeout=60_000)).json()) == 1
        for answer, code in (
            (await http.get(f"{path}1"), 40903),
            (await instance.send_request("GET", "/records", timeout=60_000), "RECORDS_UNREADABLE"),
            (
                await http.post("/consumers/deadLetter/active?group=g", json=dead_letter),
                "RECORDS_UNREADABLE",
            ),
        ):
            body = answer.json()
            assert answer.status_code == 409, body
            assert body.get("error_code", body.get("code")) == code
            assert "is too large from 1 to 2" in body["message"]


@pytest.mark.needs("process")
async def test_a_long_poll_ends_with_the_sidecar(kafka):
    config = build_config(kafka.bootstrap, [], [], sidecar={"consumer": {}})
    command = (sys.executable, "-m", "gateway", "sidecar", "-c")
    async with (
        running_gateway_process(config, command=command) as gateway,
        create_http_client(gateway) as http,
    ):
        instance = await ConsumerInstance.create_instance(http, autoCommitEnable="false")
        await instance.assign("t", 0)
        long = asyncio.create_task(instance.send_request("GET", "/records", timeout=60_000))
        path = "/topics/t/partitions/0/records?offset=0&timeout=60000"
        stateless = asyncio.create_task(http.get(path))
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                if "gateway_consumer_polling 1" in (await http.get("/metrics")).text:
                    break
                await asyncio.sleep(0.02)
        await asyncio.sleep(0)
        assert await gateway.stop() == 0
        answers = await asyncio.gather(long, stateless)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert [answer.json() for answer in answers] == [[], []]
