"""The dialect of Confluent's REST Proxy v2, as its clients and their suites take it to be, over the
socket on a real broker. Facts after the tests of Karapace and of Strimzi's bridge, and Confluent's
documentation."""

from __future__ import annotations

import base64
import json

import httpx
import pytest
from support.instances import generate_group, get_offsets
from support.oracle import read_records
from support.sidecars import running_sidecar, wait_until_ready

V2 = "application/vnd.kafka.v2+json"


def of(format: str) -> dict[str, str]:
    kind = f"application/vnd.kafka.{format}.v2+json"
    return {"content-type": kind, "accept": f"{kind}, {V2}, application/json, */*"}


@pytest.fixture
async def http(kafka):
    async with running_sidecar(kafka.bootstrap, consumer={}, producer={}) as http:
        await wait_until_ready(http)
        yield http


async def created(http: httpx.AsyncClient, group: str, trail: str = "", **body: object) -> str:
    wanted = {"auto.offset.reset": "earliest", **body}
    answer = await http.post(f"/consumers/{group}{trail}", json=wanted, headers=of("binary"))
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert made["base_uri"].endswith(f"/consumers/{group}/instances/{made['instance_id']}")
    return f"/consumers/{group}/instances/{made['instance_id']}"


def assert_error(answer: httpx.Response, status: int, code: int) -> None:
    assert (answer.status_code, answer.json()["error_code"]) == (status, code), answer.text
    assert answer.json()["message"]
    assert answer.headers["content-type"] == V2


@pytest.mark.parametrize("trail", [pytest.param("", marks=pytest.mark.smoke), "/"])
async def test_a_client_writes_subscribes_polls_and_commits(http, topic, trail):
    name, place = topic(), {"partition": 0}
    records = [{"value": base64.b64encode(b"v%d" % n).decode()} for n in range(3)]
    written = await http.post(
        f"/topics/{name}{trail}", json={"records": records}, headers=of("binary")
    )
    assert written.status_code == 200 and written.headers["content-type"] == V2
    told = written.json()
    assert [each["offset"] for each in told["offsets"]] == [0, 1, 2]
    assert {each["error_code"] for each in told["offsets"]} == {None}
    assert told["value_schema_id"] is None
    path = await created(http, generate_group(), trail, **{"auto.commit.enable": "false"})
    none = await http.get(f"{path}/subscription{trail}", headers=of("binary"))
    assert none.json() == {"topics": []}
    subscribed = await http.post(
        f"{path}/subscription{trail}", json={"topics": [name]}, headers=of("binary")
    )
    assert (subscribed.status_code, subscribed.content) == (204, b"")
    assert (await http.get(f"{path}/subscription{trail}")).json() == {"topics": [name]}
    polled = await http.get(f"{path}/records{trail}?timeout=30000", headers=of("binary"))
    assert polled.headers["content-type"] == of("binary")["content-type"]
    found = polled.json()
    assert [base64.b64decode(each["value"]) for each in found] == [b"v0", b"v1", b"v2"]
    assert all(each["topic"] == name and each["timestamp"] > 0 for each in found)
    assert all(each["key"] is None for each in found)
    assigned = await http.get(f"{path}/assignments{trail}", headers=of("binary"))
    assert assigned.json() == {"partitions": [{"topic": name, **place}]}
    committed = await http.post(f"{path}/offsets{trail}", headers={"accept": V2})
    assert committed.status_code == 200 and committed.json()
    asked = {"partitions": [{"topic": name, **place}]}
    kept = await http.request("GET", f"{path}/offsets{trail}", json=asked, headers={"accept": V2})
    assert kept.json()["offsets"] == [{"topic": name, **place, "offset": 3, "metadata": ""}]
    one = {"offsets": [{"topic": name, **place, "offset": 0}]}
    assert (await http.post(f"{path}/offsets{trail}", json=one)).status_code == 200
    kept = await http.request("GET", f"{path}/offsets{trail}", json=asked, headers={"accept": V2})
    assert kept.json()["offsets"][0]["offset"] == 1, "the next one after the record committed"
    for where in ("beginning", "end"):
        sought = await http.post(f"{path}/positions/{where}{trail}", json=asked)
        assert sought.status_code == 204
    back = {"offsets": [{"topic": name, **place, "offset": 1}]}
    assert (await http.post(f"{path}/positions{trail}", json=back)).status_code == 204
    again = await http.get(f"{path}/records{trail}?timeout=30000", headers={"accept": V2})
    assert get_offsets(again.json()) == [1, 2]
    assert (await http.delete(f"{path}/subscription{trail}")).status_code == 204
    assert (await http.delete(f"{path}{trail}")).status_code == 204
    assert_error(await http.delete(path, headers={"accept": V2}), 404, 40403)


async def test_a_commit_leaves_what_it_does_not_name_to_the_successor(http, topic, oracle):
    """One with Redpanda's `partitions`, or with an empty list, committed all that was polled."""
    name, group = topic(), generate_group()
    await oracle.produce_records(name, 10)
    manual = {"auto.commit.enable": "false"}
    for body, expected in (
        ({"partitions": [{"topic": name, "partition": 0, "offset": 2}]}, [2]),
        ({"offsets": []}, []),
    ):
        path = await created(http, group, **manual)
        await http.post(f"{path}/subscription", json={"topics": [name]})
        polled = await http.get(f"{path}/records?timeout=30000", headers={"accept": V2})
        assert get_offsets(polled.json())[-1] == 9
        committed = await http.post(f"{path}/offsets", json=body)
        assert get_offsets(committed.json()["offsets"]) == expected
        assert (await http.delete(path)).status_code == 204
    successor = await created(http, group)
    await http.post(f"{successor}/subscription", json={"topics": [name]})
    polled = await http.get(f"{successor}/records?timeout=30000", headers={"accept": V2})
    assert get_offsets(polled.json()) == [*range(2, 10)]


async def test_an_instance_is_made_once_and_as_it_can_be(http):
    group = generate_group()
    await created(http, group, name="mine")
    again = await http.post(f"/consumers/{group}", json={"name": "mine"}, headers=of("json"))
    assert_error(again, 409, 40902)
    for wrong in (
        {"format": "foo"},
        {"auto.offset.reset": "middle"},
        {"fetch.min.bytes": -10},
        {"auto.commit.enable": "perhaps"},
        {"isolation.level": "foo"},
    ):
        refused = await http.post(f"/consumers/{group}", json=wrong, headers=of("json"))
        assert_error(refused, 422, 42204)
    assert_error(await http.post(f"/consumers/{group}", content=b"{", headers=of("json")), 400, 400)
    mine = {"content-type": "application/json", "accept": V2}
    empty = await http.post(f"/consumers/{group}", json={}, headers=mine)
    assert empty.json()["instance_id"]
    plain = await http.post(f"/consumers/{group}", json={})
    assert plain.json()["instanceId"], "who says nothing speaks the contract"


async def test_what_an_instance_reads_is_chosen_in_one_way(http, topic):
    one, other = topic(), topic()
    path = await created(http, generate_group())
    both = {"topics": [one], "topic_pattern": "x"}
    assert_error(await http.post(f"{path}/subscription", json=both), 409, 40903)
    for wrong in ({}, {"topics": one}, {"topic_pattern": ["not", "text"]}):
        refused = await http.post(f"{path}/subscription", json=wrong)
        assert_error(refused, 422, 422)
    unknown = await http.post(f"{path}/subscription", json={"topics": ["no-such-topic"]})
    assert_error(unknown, 404, 40401)
    assert_error(await http.get(f"{path}/records"), 409, 40903)
    assert (await http.post(f"{path}/subscription", json={"topics": [one]})).status_code == 204
    assigned = {"partitions": [{"topic": other, "partition": 0}]}
    assert_error(await http.post(f"{path}/assignments", json=assigned), 409, 40903)
    by_hand = await created(http, generate_group())
    assert (await http.get(f"{by_hand}/assignments")).json() == {"partitions": []}
    assert (await http.post(f"{by_hand}/assignments", json=assigned)).status_code == 204
    assert (await http.get(f"{by_hand}/assignments")).json() == assigned
    elsewhere = {"offsets": [{"topic": one, "partition": 0, "offset": 1}]}
    assert_error(await http.post(f"{by_hand}/positions", json=elsewhere), 409, 40903)
    nowhere = {"partitions": [{"topic": other, "partition": 9}]}
    assert_error(await http.post(f"{by_hand}/assignments", json=nowhere), 404, 40402)


async def test_content_types_are_heard(http, topic):
    name, records = topic(), {"records": [{"value": "Zm9v"}]}
    for kind in (V2, "application/json", "application/vnd.kafka+json", of("json")["content-type"]):
        answer = await http.post(f"/topics/{name}", json=records, headers={"content-type": kind})
        assert answer.status_code == 200, kind
    for kind in ("application/vnd.kafka.binary.v2+foo", "application/vnd.kafka", "text/plain"):
        answer = await http.post(f"/topics/{name}", json=records, headers={"content-type": kind})
        assert_error(answer, 415, 41501)
    for takes in (V2, "application/json", "application/*", "*/*", "text/html, */*;q=0.1"):
        assert (await http.get("/brokers", headers={"accept": takes})).status_code == 200
    for takes in ("text/html", "application/vnd.kafka+foo"):
        assert_error(await http.get("/brokers", headers={"accept": takes}), 406, 40602)
    path = await created(http, generate_group(), format="json")
    await http.post(f"{path}/subscription", json={"topics": [name]})
    only = {"accept": of("avro")["content-type"]}
    assert_error(await http.get(f"{path}/records", headers=only), 406, 40601)


async def test_an_idempotency_key_is_refused(http, topic):
    """It was ignored without a word, and a request that came twice was written twice."""
    records = {"records": [{"value": "djA="}]}
    headers = {**of("binary"), "Idempotency-Key": "once"}
    answer = await http.post(f"/topics/{topic()}", json=records, headers=headers)
    assert_error(answer, 422, 422)
    assert "Idempotency-Key" in answer.json()["message"]


async def test_topics_partitions_and_brokers_are_told(http, topic, oracle):
    name = topic(partitions=2, configs={"retention.ms": "123456789"})
    assert name in (await http.get("/topics")).json()
    told = (await http.get(f"/topics/{name}/")).json()
    assert told["name"] == name and told["configs"]["retention.ms"] == "123456789"
    assert [each["partition"] for each in told["partitions"]] == [0, 1]
    (replica,) = told["partitions"][0]["replicas"]
    assert replica["leader"] and replica["in_sync"]
    assert replica["broker"] in (await http.get("/brokers")).json()["brokers"]
    assert (await http.get(f"/topics/{name}/partitions")).json() == told["partitions"]
    assert (await http.get(f"/topics/{name}/partitions/1")).json() == told["partitions"][1]
    await oracle.produce_records(name, 5, partition=1)
    offsets = await http.get(f"/topics/{name}/partitions/1/offsets")
    assert offsets.json() == {"beginning_offset": 0, "end_offset": 5}
    assert_error(await http.get("/topics/foo"), 404, 40401)
    assert_error(await http.get("/topics/foo/partitions"), 404, 40401)
    assert_error(await http.get(f"/topics/{name}/partitions/10"), 404, 40402)
    assert_error(await http.get(f"/topics/{name}/partitions/foo/offsets"), 404, 404)


async def test_what_is_written_is_exact_a_tombstone_is_none_and_empty_stays_empty(
    http, topic, kafka
):
    name = topic(partitions=3, configs={"retention.ms": "-1"})  # for what is stamped long ago
    records = [
        {"key": "a", "value": {"n": 1}, "headers": [{"key": "h", "value": "AQI="}]},
        {"key": "b", "value": None, "timestamp": 1_700_000_000_000},
        {"key": "c", "value": ""},
    ]
    answer = await http.post(f"/topics/{name}", json={"records": records}, headers=of("json"))
    assert answer.status_code == 200
    empty = {"records": [{"value": ""}, {"value": None}]}
    answer = await http.post(f"/topics/{name}/partitions/2", json=empty, headers=of("binary"))
    assert [each["partition"] for each in answer.json()["offsets"]] == [2, 2]
    found = await read_records(kafka.bootstrap_servers, name, min_records=5, timeout_s=60)
    by_key = {each.key: each for each in found}
    assert json.loads(by_key[b'"a"'].value) == {"n": 1}
    assert by_key[b'"b"'].value is None
    assert by_key[b'"c"'].value == b'""'
    assert [each.value for each in found if each.key is None] == [b"", None]
    path = await created(http, generate_group(), format="binary")
    await http.post(f"{path}/subscription", json={"topics": [name]})
    read: list[dict[str, object]] = []
    while len(read) < 5:
        read += (await http.get(f"{path}/records?timeout=30000")).json()
    (first,) = [each for each in read if each["key"] == base64.b64encode(b'"a"').decode()]
    assert {"key": "h", "value": "AQI="} in first["headers"]
    assert [each["value"] for each in read if each["key"] is None] == ["", None]


async def test_what_cannot_be_written_is_refused_whole(http, topic, kafka):
    name = topic()
    for url in (f"/topics/{name}", f"/topics/{name}/partitions/0"):
        for wrong in ({"records": []}, {"foo": "bar"}, {"records": [{"valur": 1}]}, {"records": 1}):
            assert_error(await http.post(url, json=wrong, headers=of("json")), 422, 422)
        good, bad = {"value": "Zm9v"}, {"value": "not base64"}
        mixed = await http.post(url, json={"records": [good, bad]}, headers=of("binary"))
        assert_error(mixed, 422, 42203)
        no_schema = {"records": [{"value": {"foo": "bar"}}]}
        assert_error(await http.post(url, json=no_schema, headers=of("avro")), 422, 42202)
        no_schema = {"records": [{"key": {"foo": "bar"}}]}
        assert_error(await http.post(url, json=no_schema, headers=of("avro")), 422, 42201)
    assert kafka.admin.get_high_watermark(name) == 0
    records = {"records": [{"value": "Zm9v"}]}
    assert_error(await http.post("/topics/no-such-topic", json=records), 404, 40401)
    assert_error(await http.post(f"/topics/{name}/partitions/7", json=records), 404, 40402)


async def test_records_are_read_by_their_offset_alone(http, topic, oracle):
    name = topic()
    await oracle.produce_records(name, 5)
    url = f"/topics/{name}/partitions/0/records"
    found = await http.get(f"{url}?offset=2", headers={"accept": of("json")["content-type"]})
    assert found.headers["content-type"] == of("json")["content-type"]
    assert get_offsets(found.json()) == [2, 3, 4] and isinstance(found.json()[0]["value"], dict)
    one = await http.get(f"{url}?offset=1&max_bytes=1")
    assert get_offsets(one.json()) == [1]
    assert (await http.get(f"{url}?offset=5&timeout=0")).json() == []
    beyond = await http.get(f"{url}?offset=6")
    assert_error(beyond, 416, 41601)
    assert (beyond.json()["log_start_offset"], beyond.json()["log_end_offset"]) == (0, 5)
    for wrong in ("", "?offset=-1", "?offset=x", "?offset=1&max_bytes=x"):
        assert_error(await http.get(f"{url}{wrong}"), 422, 422)
    assert_error(await http.get(f"/topics/{name}/partitions/3/records?offset=0"), 404, 40402)
