"""Two clusters behind one gateway: topics of the same name are two, and one may be away."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML
from support.clients.client import ReceivedEvent
from support.clients.raw import RawClient
from support.gateways import (
    build_config,
    create_http_client,
    running_gateway,
    running_gateway_process,
)
from support.in_process_gateway import running_in_process_gateway
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.scrape import fetch_metrics
from support.waiting import WAIT_TIMEOUT_S, wait_until
from typer.testing import CliRunner

from gateway import Gateway, cli
from gateway.config import Settings, loads
from gateway.errors import ConfigError
from gateway.kafka.embedded import EmbeddedKafka

NAMES = ("eu", "us")


@pytest.fixture
def kafkas() -> Iterator[dict[str, EmbeddedKafka]]:
    """Both have the topic `orders`, and one of their own."""
    with (
        EmbeddedKafka({"orders": 2, "parcels": 1}) as eu,
        EmbeddedKafka({"orders": 2, "pickups": 1}) as us,
    ):
        yield {"eu": eu, "us": us}


@pytest.fixture
async def oracles(kafkas: dict[str, EmbeddedKafka]) -> AsyncIterator[dict[str, StreamOracle]]:
    async with AsyncExitStack() as stack:
        made = {name: StreamOracle(",".join(kafka.bootstrap)) for name, kafka in kafkas.items()}
        for oracle in made.values():
            await stack.enter_async_context(oracle)
        yield made


def config(kafkas: dict[str, EmbeddedKafka], **sections: Any) -> dict[str, Any]:
    """/eu/orders, /us/orders, /parcels and /pickups, as envelopes; they may be written."""
    own = {"eu": "parcels", "us": "pickups"}
    shown = {"format": "envelope", "produce": True}
    routes: list[dict[str, Any]] = []
    for name in NAMES:
        orders = {"topic": "orders", "kafka": name, **shown}
        routes.append({"when": [{"path": f"/{name}/orders"}], "with": orders})
        alone = {"topic": own[name], **shown}
        routes.append({"when": [{"path": f"/{own[name]}"}], "with": alone})
        written = {"topic": "orders", "kafka": name, "capability": "produce"}
        routes.append({"when": [{"path": f"/{name}/write"}], "with": written})
    made = build_config("x:1", (), routes, **sections)
    made["kafka"] = {
        name: {
            "servers": kafka.bootstrap,
            "bootstrap": ["orders"],
            "topics": [{"name": "orders"}, {"name": own[name]}],
        }
        for name, kafka in kafkas.items()
    }
    return made


def has(count: int) -> Callable[[Sequence[ReceivedEvent]], bool]:
    return lambda events: sum(each["event"] == "message" for each in events) >= count


async def test_each_route_streams_from_its_own_cluster(
    kafkas: dict[str, EmbeddedKafka], oracles: dict[str, StreamOracle]
):
    async with running_in_process_gateway(config(kafkas)) as (url, _), AsyncExitStack() as stack:
        paths = {"eu": ("/eu/orders", "/parcels"), "us": ("/us/orders", "/pickups")}
        clients: dict[str, list[RawClient]] = {}
        for name in NAMES:
            made = [RawClient(url + path) for path in paths[name]]
            clients[name] = [await stack.enter_async_context(each) for each in made]
            for client in clients[name]:
                await client.wait_for_events(1)
        await oracles["eu"].produce_records("orders", 20)
        await oracles["eu"].produce_records("parcels", 5)
        await oracles["us"].produce_records("orders", 30)
        await oracles["us"].produce_records("pickups", 7)
        for name, counts in (("eu", (20, 5)), ("us", (30, 7))):
            for client, count in zip(clients[name], counts, strict=True):
                await client.wait_for_events(has(count))
            events = [each for client in clients[name] for each in client.events]
            assert sum(each["event"] == "message" for each in events) == sum(counts)
            values = {(acked.value or b"").decode() for acked in oracles[name].list_acked()}
            got = {json.loads(e["data"])["value"] for e in events if e["event"] == "message"}
            assert got == values


async def test_one_that_is_away_holds_up_nobody_of_the_other(
    kafkas: dict[str, EmbeddedKafka], oracles: dict[str, StreamOracle]
):
    """It takes nobody from it either, once both were there: it stays ready, and says why not."""
    async with (
        running_gateway(config(kafkas)) as gateway,
        create_http_client(gateway) as http,
        RawClient(f"{gateway.base_url}/eu/orders") as eu,
        RawClient(f"{gateway.base_url}/us/orders") as us,
    ):
        await eu.wait_for_events(1)
        await us.wait_for_events(1)
        kafkas["us"].down(1)
        await until_told(http, "us: no broker was reached")
        answer = await http.get("/health/ready")
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        refused = await http.get("/pickups")
        assert refused.status_code == 503 and "retry-after" in refused.headers
        await oracles["eu"].produce_records("orders", 20)
        await eu.wait_for_events(has(20))
        oracles["eu"].check_events(eu.events)
        reachable = (await fetch_metrics(gateway))["gateway_kafka_reachable", {"cluster": "us"}]
        assert reachable == 0
        kafkas["us"].up(1)
        await until_told(http, '"reasons":[]')
        await oracles["us"].produce_records("orders", 10)
        await us.wait_for_events(has(10))
        oracles["us"].check_events(us.events)
        assert len(us.responses) == 1, "it never left"


async def until_told(http: httpx.AsyncClient, what: str) -> None:
    told = ""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while what not in told:
            await asyncio.sleep(0.05)
            told = (await http.get("/health/ready")).text


async def test_it_is_not_ready_before_each_cluster_was_reached(kafkas: dict[str, EmbeddedKafka]):
    made = config(kafkas)
    made["kafka"]["us"] |= {"servers": ["127.0.0.1:1"], "bootstrap": []}
    async with (
        running_in_process_gateway(made) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
    ):
        await until_told(http, "connection refused")
        await until_told(http, '"reasons":["us: ')
        answer = await http.get("/health/ready")
        assert answer.status_code == 503
        assert [each.split(":")[0] for each in answer.json()["reasons"]] == ["us"]


async def test_a_position_of_one_is_foreign_to_the_other(
    kafkas: dict[str, EmbeddedKafka], oracles: dict[str, StreamOracle]
):
    """Also where their topics have the same names."""
    await oracles["eu"].produce_records("orders", 3)
    async with (
        running_in_process_gateway(config(kafkas)) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http,
    ):
        page = await http.get("/eu/orders?from=earliest&until=latest&positions=true",
                              headers={"Accept": "application/x-ndjson"})  # fmt: skip
        assert page.status_code == 200
        async with RawClient(f"{url}/eu/orders?from=earliest") as client:
            await client.wait_for_events(has(3))
            position = client.last_event_id
        same = await http.get(f"/eu/orders?until=latest&lastEventId={position}")
        assert same.status_code == 200
        foreign = await http.get(f"/us/orders?until=latest&lastEventId={position}")
        assert foreign.status_code == 400 and "cluster" in foreign.json()["detail"]


async def test_one_socket_has_streams_of_both_and_moves_one_over(
    kafkas: dict[str, EmbeddedKafka], oracles: dict[str, StreamOracle]
):
    async with (
        running_in_process_gateway(config(kafkas)) as (url, _),
        MultiplexClient(url) as socket,
    ):
        for name in NAMES:
            await socket.subscribe(name, f"/{name}/orders")
        await oracles["eu"].produce_records("orders", 4)
        await oracles["us"].produce_records("orders", 6)
        await socket.wait_until(
            lambda: (len(socket.get_records("eu")), len(socket.get_records("us"))) == (4, 6)
        )
        begin = await socket.change("eu", path="/us/orders")
        assert begin["topics"] == ["orders"]
        await oracles["eu"].produce_records("orders", 1)
        await oracles["us"].produce_records("orders", 2)
        await socket.wait_until(
            lambda: (len(socket.get_records("eu")), len(socket.get_records("us"))) == (6, 8)
        )
        assert socket.get_records("eu")[4:] == socket.get_records("us")[6:]
        assert socket.close_code is None


async def test_what_is_written_goes_to_the_cluster_of_its_route(
    kafkas: dict[str, EmbeddedKafka], oracles: dict[str, StreamOracle]
):
    """The same idempotency key is another in the other."""
    key = {"Idempotency-Key": "once"}
    async with (
        running_in_process_gateway(config(kafkas)) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http,
        MultiplexClient(url) as socket,
    ):
        for name in NAMES:
            for status in (201, 200):
                answer = await http.post(f"/{name}/write", content=f"post {name}", headers=key)
                assert answer.status_code == status, answer.text
            await socket.send_message(
                "produce", id=name, path=f"/{name}/orders", value=f"say {name}"
            )
            await socket.wait_for_message(name, "produced")
        for name in NAMES:
            answer = await http.get(f"/{name}/orders?from=earliest&until=latest",
                                    headers={"Accept": "application/x-ndjson"})  # fmt: skip
            lines = [json.loads(line) for line in answer.text.splitlines()]
            values = sorted(each["value"] for each in lines if "value" in each)
            assert values == [f"post {name}", f"say {name}"]


async def test_figures_of_a_cluster_have_its_name_and_those_of_one_alone_none(
    kafkas: dict[str, EmbeddedKafka], oracles: dict[str, StreamOracle]
):
    async with (
        running_gateway(config(kafkas)) as gateway,
        RawClient(f"{gateway.base_url}/eu/orders") as client,
    ):
        await client.wait_for_events(1)
        scrape = await fetch_metrics(gateway)
        for name in NAMES:
            assert scrape["gateway_kafka_reachable", {"cluster": name}] == 1
            ready = {"topic": "orders", "partition": 0, "cluster": name}
            assert scrape["gateway_partition_ready", ready] == 1
        assert scrape["gateway_clients", {"route": "/eu/orders", "wire": "sse"}] == 1
        assert scrape["gateway_memory_limit_bytes", {}] == 1024**3
    alone = build_config(kafkas["eu"].bootstrap, ["orders"], kafka={"bootstrap": ["orders"]})
    async with running_gateway(alone) as gateway:
        scrape = await fetch_metrics(gateway)
        assert scrape["gateway_kafka_reachable", {}] == 1
        assert scrape["gateway_partition_ready", {"topic": "orders", "partition": 0}] == 1


@pytest.mark.smoke
@pytest.mark.needs("process")
async def test_workers_serve_both_and_all_streams_end_when_it_ends(
    kafkas: dict[str, EmbeddedKafka], oracles: dict[str, StreamOracle]
):
    async with running_gateway_process(config(kafkas), arguments=("--workers", "2")) as gateway:
        async with AsyncExitStack() as stack:
            clients: list[tuple[str, RawClient]] = []
            for name in NAMES * 3:
                made = RawClient(f"{gateway.base_url}/{name}/orders", retry=WAIT_TIMEOUT_S)
                clients.append((name, await stack.enter_async_context(made)))
                await clients[-1][1].wait_for_events(1)
            for name in NAMES:
                await oracles[name].produce_records("orders", 10)
            for name, client in clients:
                await client.wait_for_events(has(10))
                oracles[name].check_events(client.events)
            gateway.send_signal(signal.SIGTERM)
            for _, client in clients:
                await client.wait_for_events(
                    lambda events: any(e["event"] == "end" for e in events)
                )
        assert await gateway.stop() == 0


async def test_a_reload_changes_what_is_said_of_one_cluster_and_leaves_the_other_alone(
    kafkas: dict[str, EmbeddedKafka], oracles: dict[str, StreamOracle]
):
    """Though their topics have the same name."""
    made = config(kafkas)
    async with running_in_process_gateway(made) as (url, app), MultiplexClient(url) as socket:
        for name in NAMES:
            await socket.subscribe(name, f"/{name}/orders")
        made["kafka"]["us"]["topics"][0]["cache"] = {"age": "1m"}
        made["kafka"]["eu"]["requestTimeout"] = "3s"
        outcome = await app.reload(settings(made))
        assert outcome.streams == {"untouched": 1, "moved": 1}
        assert outcome.kept == ("kafka.eu.requestTimeout",)
        await oracles["eu"].produce_records("orders", 4)
        await oracles["us"].produce_records("orders", 6)
        await socket.wait_until(
            lambda: (len(socket.get_records("eu")), len(socket.get_records("us"))) == (4, 6)
        )
        assert (
            len(socket.get_messages("eu", "begin")),
            len(socket.get_messages("us", "begin")),
        ) == (1, 2)


async def test_a_cluster_that_is_new_needs_a_restart_and_one_that_is_gone_has_no_topics(
    kafkas: dict[str, EmbeddedKafka],
):
    made = config(kafkas)
    async with running_in_process_gateway(made) as (url, app), MultiplexClient(url) as socket:
        for name in NAMES:
            await socket.subscribe(name, f"/{name}/orders")
        made["kafka"]["asia"] = {"servers": kafkas["eu"].bootstrap}
        with pytest.raises(ConfigError, match=r"kafka\.asia: it is new, and needs a restart"):
            await app.reload(settings(made))
        del made["kafka"]["asia"], made["kafka"]["us"]
        made["routes"] = [each for each in made["routes"] if "/eu/orders" in str(each)]
        outcome = await app.reload(settings(made))
        assert outcome.kept == ("kafka.us",)
        assert outcome.streams == {"untouched": 1, "ended (route-removed)": 1}
        await socket.wait_for_message("us", "end")


def settings(made: dict[str, Any]) -> Settings:
    text = StringIO()
    YAML().dump(made, text)
    return loads(text.getvalue())


async def test_a_program_says_which_cluster_where_the_topic_does_not(
    kafkas: dict[str, EmbeddedKafka],
):
    async with Gateway(settings(config(kafkas))) as gateway:
        for name in NAMES:
            await gateway.produce("orders", f"to {name}", kafka=name)
        await gateway.produce("parcels", "p")
        for name in NAMES:
            stream = gateway.subscribe("orders", start="earliest", until="latest", kafka=name)
            assert [record.value async for record in stream] == [f"to {name}".encode()]
        stream = gateway.subscribe("parcels", start="earliest", until="latest")
        assert [record.value async for record in stream] == [b"p"]
        with pytest.raises(ValueError, match="several clusters list orders; say which"):
            gateway.subscribe("orders")
        with pytest.raises(ValueError, match="no cluster lists secrets"):
            await gateway.produce("secrets", "x")
        with pytest.raises(ValueError, match="no cluster 'uss'; did you mean 'us'"):
            gateway.subscribe("orders", kafka="uss")
    with pytest.raises(ValueError, match="no cluster 'eu'"):
        Gateway(servers="a:1").subscribe("orders", kafka="eu")


async def test_what_is_served_is_listed_and_tried_for_both(
    kafkas: dict[str, EmbeddedKafka], tmp_path: Path
):
    made = config(kafkas)
    made["kafka"]["us"]["topics"].append({"name": "pickup"})
    async with (
        running_in_process_gateway(made) as (url, _),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        told = (await http.get(url, headers={"Accept": "application/json"})).json()
        assert ["/parcels"] in [each["paths"] for each in told["streams"]]
        assert not any(server in str(told) for server in kafkas["us"].bootstrap)
    file = tmp_path / "gateway.yaml"
    with file.open("w") as out:
        YAML().dump(made, out)
    arguments = ["check", str(file), "--cluster", "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, cli.app, arguments)
    found = {each["subject"]: each for each in map(json.loads, result.stdout.splitlines())}
    assert result.exit_code == 1 and found["eu: topic orders"]["state"] != "fails"
    assert found["us: topic pickup"]["detail"].endswith("did you mean 'pickups'?")


async def test_a_command_takes_the_cluster_that_lists_its_topic(
    kafkas: dict[str, EmbeddedKafka], tmp_path: Path
):
    file, lines = tmp_path / "gateway.yaml", tmp_path / "lines"
    lines.write_text("hello\n")
    with file.open("w") as out:
        YAML().dump(config(kafkas), out)
    written = ["produce", "pickups", "-f", str(lines), "-c", str(file)]
    result = await asyncio.to_thread(CliRunner().invoke, cli.app, written)
    assert result.exit_code == 0 and "1 of 1 lines acknowledged" in result.stdout, result.output
    unclear = ["produce", "orders", "-f", str(lines), "-c", str(file)]
    result = await asyncio.to_thread(CliRunner().invoke, cli.app, unclear)
    assert result.exit_code == 1 and "eu and us" in result.stderr


async def test_caches_of_both_are_within_one_bound(
    kafkas: dict[str, EmbeddedKafka], oracles: dict[str, StreamOracle]
):
    """The one that has more gives up more, and neither all."""
    made = config(kafkas, memory="1MiB")
    async with running_in_process_gateway(made) as (_, app):
        hubs = app.gateway.hubs
        await wait_until(
            lambda: not any(hub.topics.list_unread_bootstrap() for hub in hubs),
            timeout_s=WAIT_TIMEOUT_S,
        )
        await oracles["eu"].produce_records("orders", 900, fields={"pad": "x" * 1000})
        await oracles["us"].produce_records("orders", 2700, fields={"pad": "x" * 1000})
        ends = {"eu": 900, "us": 2700}
        await wait_until(
            lambda: all(
                sum(log.next_offset or 0 for log in hub.logs) == ends[hub.name] for hub in hubs
            ), timeout_s=WAIT_TIMEOUT_S,
        )  # fmt: skip
        await wait_until(
            lambda: sum(held(hub) for hub in hubs) <= 1 << 20, timeout_s=WAIT_TIMEOUT_S
        )
        eu, us = (held(hub) for hub in hubs)
        assert 0 < eu < us


def held(hub: Any) -> int:
    return sum(int(log.bytes) for log in hub.logs)
