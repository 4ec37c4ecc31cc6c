"""What a route lets its clients write is what it shows: filters look at the same record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from support.brokers import embedded_kafka
from support.gateways import GatewayThread, build_config, create_http_client
from support.multiplex import MultiplexClient
from support.topic_gateway import run_gateway_sync

from gateway.kafka.embedded import EmbeddedKafka

VIEWS = 16  # random ones
RECORDS = 40  # written to each
NAMES = ("region", "Kind", "x")
WORDS = ("a", "b", "c")

TOPICS = ["regions", "keyed", *(f"{side}-{n}" for side in "lr" for n in range(VIEWS))]
kafka = embedded_kafka(dict.fromkeys(TOPICS, 1))


def random_transforms(random: Random) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for _ in range(random.randint(0, 2)):
        if random.random() < 0.4:
            made.append({"extract-key": f"${{message.value.{random.choice(NAMES)}}}"})
        else:
            some = random.sample(NAMES, random.randint(1, 2))
            fields = {name: f"${{message.value.{random.choice(NAMES)}}}" for name in some}
            made.append({"extract-headers": fields})
    return made


def random_filter(random: Random) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if random.random() < 0.4:
        made["key"] = random.choice(WORDS)
    if random.random() < 0.7:
        name = random.choice(NAMES)
        wanted: Any = random.choice(WORDS)
        made["headers"] = {name: wanted if random.random() < 0.7 else {"exists": False}}
    if not made or random.random() < 0.3:
        made["value"] = {f"/{random.choice(NAMES)}": random.choice(WORDS)}
    return made


def route(path: str, topic: str, **options: Any) -> dict[str, Any]:
    with_ = {"topic": topic, "format": "envelope", "produce": True, **options}
    return {"when": [{"path": path}], "with": with_}


def configuration(bootstrap: list[str]) -> dict[str, Any]:
    random = Random(7)
    region = {"extract-headers": {"region": "${message.value.region}"}}
    topics: list[dict[str, Any]] = [
        {"name": "regions", "transforms": [region]},
        {"name": "keyed", "transforms": [{"extract-key": "${message.value.owner}"}]},
    ]
    routes = [
        route("/eu", "regions", filters=[{"headers": {"region": "eu"}}]),
        route("/us", "regions", filters=[{"headers": {"region": "us"}}]),
        route("/of/{owner}", "keyed", filters=[{"key": "${params.owner}"}]),
        {
            "when": [{"path": "/posted/{region}"}],
            "with": {
                "capability": "produce", "topic": "regions",
                "filters": [{"headers": {"region": "${params.region}"}}],
                "overrides": {"Region": "${params.region}"},
            },
        },
    ]  # fmt: skip
    for n in range(VIEWS):
        transforms = random_transforms(random)
        filters = [random_filter(random) for _ in range(random.randint(1, 2))]
        for side in "lr":
            topics.append({"name": f"{side}-{n}", "transforms": transforms})
            routes.append(route(f"/{side}/{n}", f"{side}-{n}", filters=filters))
        routes.append(route(f"/any/{n}", f"r-{n}"))
    return build_config(bootstrap, topics, routes)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    with run_gateway_sync(configuration(kafka.bootstrap)) as running:
        yield running


async def shown(gateway: GatewayThread, path: str) -> list[dict[str, Any]]:
    """All records of a route, as they are now."""
    async with create_http_client(gateway) as http:
        lines = {"Accept": "application/x-ndjson"}
        answer = await http.get(f"{path}?from=earliest&until=latest", headers=lines)
    assert answer.status_code == 200, answer.text
    told = [json.loads(line) for line in answer.text.splitlines()]
    records = [each for each in told if "offset" in each and "value" in each]
    return [{**each, "value": json.loads(each["value"])} for each in records]


async def written(socket: MultiplexClient, path: str, **record: Any) -> str:
    """How a record is answered: `produced`, or the code of the error."""
    (answer,) = await all_written(socket, path, [record])
    return answer


async def all_written(
    socket: MultiplexClient, path: str, records: Sequence[Mapping[str, Any]]
) -> list[str]:
    """How each record is answered, all of which are sent at once."""
    known = len(socket.messages)
    for n, record in enumerate(records):
        await socket.send_message("produce", id=f"{n}", path=path, **record)
    await socket.wait_until(lambda: len(socket.messages) == known + len(records))
    answers = {each["id"]: each for each in socket.messages[known:]}
    by_number = [answers[f"{n}"] for n in range(len(records))]
    return [str(each["type"] if each["type"] == "produced" else each["code"]) for each in by_number]


async def test_a_header_that_a_transform_sets_is_not_its_clients(gateway: GatewayThread):
    """The filters of a route looked at a record before its topic's transforms, and any header of a
    name was enough: a client of /eu wrote records that /us showed, and its own were refused."""
    async with MultiplexClient(gateway.base_url) as eve:
        foreign = {"value": {"region": "us", "n": 1}, "headers": {"region": "eu"}}
        assert await written(eve, "/eu", **foreign) == "forbidden"
        assert await written(eve, "/eu", value={"region": "eu", "n": 2}) == "produced"
        both = {"value": {"region": "eu", "n": 3}, "headers": {"region": "us", "x": "1"}}
        assert await written(eve, "/eu", **both) == "produced"
        without = {"value": {"n": 4}, "headers": {"region": "eu"}}
        assert await written(eve, "/eu", **without) == "forbidden"
    assert await shown(gateway, "/us") == []
    own = await shown(gateway, "/eu")
    assert [each["value"]["n"] for each in own] == [2, 3]
    assert own[1]["headers"] == [["x", "1"], ["region", "eu"]]


async def test_a_key_that_is_taken_from_the_value_is_looked_at(gateway: GatewayThread):
    """The key as it was sent was looked at, and streams show another."""
    async with MultiplexClient(gateway.base_url) as ada:
        foreign = {"key": "ada", "value": {"owner": "bob"}}
        assert await written(ada, "/of/ada", **foreign) == "forbidden"
        assert await written(ada, "/of/ada", key="7", value={"owner": "ada"}) == "produced"
    assert await shown(gateway, "/of/bob") == []
    assert [each["key"] for each in await shown(gateway, "/of/ada")] == ["ada"]


async def test_over_http_it_is_the_same(gateway: GatewayThread):
    """An override of the route, here of its path, stood in for the header of the transform."""
    async with create_http_client(gateway) as http:
        assert (await http.post("/posted/asia", json={"region": "mars"})).status_code == 403
        assert (await http.post("/posted/asia", json={"region": "asia"})).status_code == 201


async def test_what_may_be_written_is_what_is_shown_whatever_transforms_and_filters(
    gateway: GatewayThread,
):
    """Of random views each record is written twice: by the view, which may refuse it, and by a
    route that lets everything through to a topic alike. The view of that one is the oracle."""
    random = Random(11)
    refused = 0
    async with MultiplexClient(gateway.base_url) as socket:
        for n in range(VIEWS):
            records = []
            for number in range(RECORDS):
                some = random.sample(NAMES, random.randint(0, 3))
                value: Any = {name: random.choice(WORDS) for name in some} | {"number": number}
                headers = {name: random.choice(WORDS) for name in NAMES if random.random() < 0.4}
                key = random.choice([None, *WORDS])
                records.append({"key": key, "value": value, "headers": headers})
            assert set(await all_written(socket, f"/any/{n}", records)) == {"produced"}
            answers = await all_written(socket, f"/l/{n}", records)
            let = [number for number, answer in enumerate(answers) if answer == "produced"]
            refused += RECORDS - len(let)
            mine, oracle = await shown(gateway, f"/l/{n}"), await shown(gateway, f"/r/{n}")
            assert [each["value"]["number"] for each in mine] == let
            assert [each["value"]["number"] for each in oracle] == let
            for one, other in zip(mine, oracle, strict=True):
                assert (one["key"], one["headers"]) == (other["key"], other["headers"])
    assert 0.1 < refused / (VIEWS * RECORDS) < 0.95, "the views are not worth comparing"
