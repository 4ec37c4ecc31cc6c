"""A configuration that is taken over while streams run: who goes on, as what, and who does not."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from os import kill
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.admin_api import ADMIN_SECTION, open_admin_api
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.clients.wires import WireName, client_for_wire, every_wire
from support.gateways import (
    GATEWAY,
    GatewayProcess,
    build_config,
    running_gateway,
    running_gateway_process,
)
from support.issuer import AUDIENCE, ISSUER_NAME, TokenIssuer
from support.oracle import StreamOracle
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 3, "stock": 3})

ISSUER = TokenIssuer()
RELOADED = "configuration reloaded"
REFUSED = "configuration not reloaded"


def config_of(
    kafka: EmbeddedKafka, *routes: Mapping[str, Any], topics: Sequence[Any] = (), **sections: Any
) -> dict[str, Any]:
    return build_config(kafka.bootstrap, topics or ["orders", "stock"], routes, **sections)


def at(path: str, topic: str = "orders", **options: Any) -> dict[str, Any]:
    """A route; guarded: is none of its `with`; empty: everybody may use it."""
    guards = options.pop("guarded", None)
    guarded = {"guarded": guards} if guards else {}
    target = {"topic": topic, "format": "envelope", **options}
    return {"when": [{"path": path}], **guarded, "with": target}


def named(client: RawClient, name: str) -> list[dict[str, Any]]:
    return [json.loads(each["data"]) for each in client.events if each["event"] == name]


def keys(client: RawClient) -> list[str]:
    return [record["key"] for record in named(client, "message")]


async def begun(client: RawClient, times: int = 1) -> None:
    await client.wait_for_events(lambda _: len(named(client, "begin")) >= times)


@every_wire
async def test_each_stream_goes_on_as_its_route_says_by_now(
    kafka: EmbeddedKafka, oracle: StreamOracle, wire: WireName
):
    old = config_of(kafka, at("/same"), at("/changed"), at("/other"), at("/gone"))
    only = [{"key": "b"}]
    new = config_of(
        kafka, at("/same"), at("/changed", filters=only), at("/other", "stock"), at("/new")
    )
    async with running_gateway(old) as gateway, AsyncExitStack() as stack:
        same, changed, other, gone = [
            await stack.enter_async_context(
                client_for_wire(wire, RawClient)(f"{gateway.base_url}/{path}")
            )
            for path in ("same", "changed", "other", "gone")
        ]
        for client in (same, changed, other, gone):
            await begun(client)
        await oracle.produce_records("orders", 3, key=b"a")
        for client in (same, changed, other, gone):
            await client.wait_for_events(lambda _, client=client: keys(client) == ["a"] * 3)

        said = await gateway.reload(new)
        assert said["routes"] == {"same": 1, "changed": 2, "added": 1, "removed": 1}
        assert said["streams"] == {"untouched": 1, "moved": 2, "ended (route-removed)": 1}

        await begun(changed, 2)
        await begun(other, 2)
        told = named(changed, "begin")[1]
        assert told["changed"] is True and told["view"] == "changed"
        assert named(other, "begin")[1]["topics"] == ["stock"]
        await gone.wait_for_events(lambda _: named(gone, "end") or gone.is_closed)
        assert [end["reason"] for end in named(gone, "end")] == ["route-removed"]

        await oracle.produce_records("orders", 3, key=b"a")
        await oracle.produce_records("orders", 3, key=b"b")
        await oracle.produce_records("stock", 2, key=b"s")
        await same.wait_for_events(lambda _: len(keys(same)) == 9)
        await changed.wait_for_events(lambda _: len(keys(changed)) == 6)
        await other.wait_for_events(lambda _: len(keys(other)) == 5)
        assert keys(changed) == ["a"] * 3 + ["b"] * 3
        assert keys(other) == ["a"] * 3 + ["s"] * 2
        assert len(named(same, "begin")) == 1 and same.open_count <= 1
        async with httpx.AsyncClient(timeout=WAIT_TIMEOUT_S) as http:
            assert (await http.get(f"{gateway.base_url}/gone")).status_code == 404
            page = await http.get(f"{gateway.base_url}/new?until=latest&from=earliest")
            assert page.status_code == 200
            listed = (await http.get(f"{gateway.base_url}/")).text
            assert "/new" in listed and "/gone" not in listed


@pytest.mark.smoke
@pytest.mark.needs("process")
async def test_what_is_wrong_is_said_and_all_stays_as_it_was(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    good = config_of(kafka, at("/same"))
    async with (
        running_gateway_process(good) as gateway,
        RawClient(f"{gateway.base_url}/same") as client,
    ):
        await begun(client)
        gateway.write_config(config_of(kafka, at("/same", fromat="value")))
        gateway.send_signal(signal.SIGHUP)
        await wait_until(lambda: REFUSED in gateway.log, gateway.read_log_tail)
        assert "format" in gateway.log.rpartition(REFUSED)[2]
        gateway.config_path.unlink()
        gateway.send_signal(signal.SIGHUP)
        await wait_until(lambda: gateway.log.count(REFUSED) == 2, gateway.read_log_tail)
        await oracle.produce_records("orders", 1, key=b"a")
        await client.wait_for_events(lambda _: keys(client) == ["a"])
        said = await hang_up(gateway, good)
        assert "1 same" in said and "1 untouched" in said
        assert len(named(client, "begin")) == 1


async def hang_up(gateway: GatewayProcess, config: Mapping[str, Any], workers: int = 1) -> str:
    """Once all of its processes have taken it over; the line that the last one said."""
    before = gateway.log.count(RELOADED)
    gateway.write_config(config)
    gateway.send_signal(signal.SIGHUP)
    await wait_until(
        lambda: gateway.log.count(RELOADED) >= before + workers,
        gateway.read_log_tail,
    )
    return gateway.log.rpartition(RELOADED)[2].splitlines()[0]


async def test_what_needs_a_restart_is_named_and_stays(kafka: EmbeddedKafka):
    async with running_gateway(config_of(kafka, at("/same"))) as gateway:
        other = config_of(kafka, at("/same"), listen={"limits": {"connections": 1}})
        other["kafka"] |= {"clientId": "x"}
        said = await gateway.reload(other | {"name": "other"})
        assert {"name", "listen.limits", "kafka.clientId"} <= set(said["kept"])


@pytest.mark.parametrize(
    ("routes", "topics"),
    [
        ([at("/orders"), at("/other", heartbeat="5s")], ["orders"]),
        ([at("/orders", filters=[{"key": "b"}]), at("/other")], ["orders"]),
        ([at("/orders"), at("/other")], [{"name": "orders", "cache": {"bytes": "1MiB"}}]),
    ],
    ids=["another route", "its own", "its topic"],
)
async def test_a_page_that_waits_loses_nothing_by_a_reload(
    kafka: EmbeddedKafka, oracle: StreamOracle, routes: list[dict[str, Any]], topics: list[Any]
):
    """It was thrown away, and the next one began behind its records; or it waited for a read of its
    topic that nobody fed any more."""
    old = config_of(kafka, at("/orders"), at("/other"))
    async with (
        running_gateway(old) as gateway,
        httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=60) as http,
    ):
        waiting = asyncio.create_task(
            http.get("/orders?wait=30", headers={"Accept": "application/x-ndjson"})
        )
        (hub,) = gateway.app.gateway.hubs
        # The mock of Kafka finds no offset by a time, as is needed for a page that has not begun.
        await wait_until(
            lambda: any(not each.shared_tail.tail.readiness.list_pending() for each in hub.clients)
        )
        await gateway.reload(config_of(kafka, *routes, topics=topics))
        await oracle.produce_records("orders", 1, key=b"b")
        page = await waiting
        lines = [json.loads(line) for line in page.text.splitlines()]
        assert [line["key"] for line in lines if "key" in line] == ["b"], page.text


@every_wire
async def test_a_topic_that_is_read_otherwise_is_told_so_from_there_on(
    kafka: EmbeddedKafka, oracle: StreamOracle, wire: WireName
):
    transforms = [{"extract-headers": {"n": "${message.value.n}"}}]
    old = config_of(kafka, at("/same"), at("/stock", "stock"))
    new = config_of(
        kafka, at("/same"), at("/stock", "stock"),
        topics=[{"name": "orders", "transforms": transforms}, "stock"],
    )  # fmt: skip
    async with (
        running_gateway(old) as gateway,
        client_for_wire(wire, RawClient)(f"{gateway.base_url}/same") as client,
        client_for_wire(wire, RawClient)(f"{gateway.base_url}/stock") as stock,
    ):
        await begun(client)
        await begun(stock)
        await oracle.produce_records("orders", 4)
        await client.wait_for_events(lambda _: len(keys(client)) == 4)
        await gateway.reload(new)
        await oracle.produce_records("orders", 4)
        await client.wait_for_events(lambda _: len(keys(client)) == 8)
        headers = [record["headers"] for record in named(client, "message")]
        assert not any(headers[:4]) and all(headers[4:])
        assert len(named(client, "begin")) == 2 and len(named(stock, "begin")) == 1


@every_wire
async def test_who_may_not_be_here_any_more_is_told_so_and_others_stay(
    kafka: EmbeddedKafka, oracle: StreamOracle, wire: WireName
):
    guard = {"type": "jwt", "issuer": ISSUER_NAME, "audience": AUDIENCE, "keys": ISSUER.jwks}
    guards = {"login": guard, "other": guard}
    headers = {"Authorization": f"Bearer {ISSUER.issue_token(scope='read')}"}
    paths = ("kept", "role", "guard", "opened")

    def routes(**guarded: Any) -> list[dict[str, Any]]:
        return [at(f"/{path}", guarded=guarded[path]) for path in paths]

    old = routes(kept={"login": []}, role={"login": []}, guard={"other": []}, opened={"login": []})
    new = routes(
        kept={"login": ["read"]}, role={"login": ["write"]}, guard={"other": []}, opened={}
    )
    changed = {**guards, "other": {**guard, "leeway": "1m"}}
    async with (
        running_gateway(config_of(kafka, *old, guards=guards)) as gateway,
        AsyncExitStack() as stack,
    ):
        clients = {
            path: await stack.enter_async_context(
                client_for_wire(wire, RawClient)(f"{gateway.base_url}/{path}", headers=headers)
            )
            for path in paths
        }
        for client in clients.values():
            await begun(client)
        said = await gateway.reload(config_of(kafka, *new, guards=changed))
        assert said["streams"] == {"untouched": 2, "ended (access-changed)": 2}
        for path in ("role", "guard"):
            client = clients[path]
            await client.wait_for_events(lambda _, client=client: named(client, "end"))
            assert named(client, "end")[0]["reason"] == "access-changed"
        await oracle.produce_records("orders", 1, key=b"a")
        for path in ("kept", "opened"):
            client = clients[path]
            await client.wait_for_events(lambda _, client=client: keys(client) == ["a"])
            assert len(named(client, "begin")) == 1


async def test_a_key_that_is_added_ends_no_stream_and_one_that_is_removed_does(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    """A key that was added ended all streams of the guard."""
    issuer = TokenIssuer()
    headers = {"Authorization": f"Bearer {issuer.issue_token()}"}

    def config() -> dict[str, Any]:
        guard = {"type": "jwt", "issuer": ISSUER_NAME, "audience": AUDIENCE, "keys": issuer.jwks}
        return config_of(kafka, at("/kept", guarded={"login": []}), guards={"login": guard})

    async with (
        running_gateway(config()) as gateway,
        RawClient(f"{gateway.base_url}/kept", headers=headers) as client,
    ):
        await begun(client)
        issuer.rotate_key("k1", keep_old=True)
        assert (await gateway.reload(config()))["streams"] == {"untouched": 1}
        newer = {"Authorization": f"Bearer {issuer.issue_token()}"}
        async with RawClient(f"{gateway.base_url}/kept", headers=newer) as other:
            await begun(other)
            issuer.rotate_key("k1")
            said = await gateway.reload(config())
            assert said["streams"] == {"ended (access-changed)": 2}
            await other.wait_for_events(lambda _: len(named(other, "begin")) == 2)
        await client.wait_for_events(lambda _: named(client, "end"))


@pytest.mark.smoke
@pytest.mark.needs("process")
async def test_all_workers_take_it_over_also_one_that_is_started_later(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    listen = {"workers": 3}
    old = config_of(kafka, at("/records"), listen=listen)
    new = config_of(kafka, at("/records", filters=[{"key": "b"}]), listen=listen)
    async with running_gateway_process(old) as gateway, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(RawClient(f"{gateway.base_url}/records"))
            for _ in range(9)
        ]
        for client in clients:
            await begun(client)
        await hang_up(gateway, new, workers=3)
        for client in clients:
            await begun(client, 2)
        started = gateway.log.count("Application startup complete")
        (first, *_) = re.findall(r"Started server process \[(\d+)\]", gateway.log)
        kill(int(first), signal.SIGKILL)
        await wait_until(
            lambda: gateway.log.count("Application startup complete") > started,
            gateway.read_log_tail,
        )
        await oracle.produce_records("orders", 3, key=b"a")
        await oracle.produce_records("orders", 1, key=b"b")
        for client in clients:
            await client.wait_for_events(lambda _, client=client: keys(client)[-1:] == ["b"])
            assert set(keys(client)) == {"b"}


EACH_ROUTE, RELOADS, EACH = 250, 20, 20


PATHS = ("/same", "/filter", "/format", "/topics")


UNTIL, ANEW = 8, 4  # so many of the reloads change options of a topic, none of the first ones


_OFFSET = re.compile(rb'"partition":(\d+),"offset":(\d+),"timestamp"|"id":"orders:(\d+):(\d+)"')


class Light:
    """One stream, its bytes as they came."""

    def __init__(self) -> None:
        self.body = bytearray()

    async def read(self, port: int, path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            asked = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
            writer.write(asked.encode())
            while piece := await reader.read(1 << 16):
                self.body += piece
        finally:
            writer.close()

    @property
    def begins(self) -> int:
        return self.body.count(b"event: begin")

    @property
    def seen(self) -> list[tuple[int, int]]:
        """In an envelope, or as a CloudEvent."""
        found = _OFFSET.findall(self.body)
        return [(int(p or again), int(at or there)) for p, at, again, there in found]


@pytest.mark.night
async def test_a_thousand_streams_lose_and_repeat_nothing_over_twenty_reloads(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    """Of four routes one is touched by nothing but options of its topic; of the others the filter,
    the format, and the topics are other ones each time. A fifth one is there for
    one time only."""

    def config(turn: int) -> dict[str, Any]:
        odd = turn % 2 == 1
        either = [{"key": "a"}, {"key": "b"}] if odd else [{"key": "b"}, {"key": "a"}, {"key": "c"}]
        added = ["orders", "stock"] if odd else ["orders"]
        several = at("/topics")
        del several["with"]["topic"]
        several["with"]["topics"] = added
        return config_of(
            kafka,
            at("/same"),
            at("/filter", filters=either),
            at("/format", format="cloudevents" if odd else "envelope", fields=["/n"]),
            several,
            at(f"/only/{turn}"),
            topics=[{"name": "orders", "cache": {"age": f"{60 + turn}s"}} if odd else "orders",
                    "stock"] if turn % 5 == 4 else ["orders", "stock"],
        )  # fmt: skip

    due: set[tuple[int, int]] = set()
    async with running_gateway(config(0)) as gateway:
        port = gateway.port
        lights = [(path, Light()) for path in PATHS for _ in range(EACH_ROUTE)]
        tasks = [asyncio.create_task(light.read(port, path)) for path, light in lights]
        removed: list[Light] = []
        passing: list[asyncio.Task[None]] = []
        try:
            await wait_until(lambda: all(light.begins for _, light in lights), "begins")
            for turn in range(1, RELOADS + 1):
                removed.append(Light())
                passing.append(asyncio.create_task(removed[-1].read(port, f"/only/{turn - 1}")))
                await wait_until(lambda: removed[-1].begins, "the begin of one that is to go")
                producing = asyncio.create_task(oracle.produce_records("orders", EACH, key=b"a"))
                await gateway.reload(config(turn))
                if turn == UNTIL:
                    same = [light for path, light in lights if path == "/same"]
                    assert [light.begins for light in same] == [1] * EACH_ROUTE
                due |= {(acked.tp.partition, acked.offset) for acked in await producing}
            assert len(due) == RELOADS * EACH
            await wait_until(
                lambda: all(len(light.seen) >= len(due) for _, light in lights),
                lambda: f"{sum(len(light.seen) >= len(due) for _, light in lights)} are whole",
            )
            assert not any(task.done() for task in tasks), "nobody was lost"
            await wait_until(lambda: all(b"route-removed" in light.body for light in removed))
            for path, light in lights:
                assert len(light.seen) == len(due) and set(light.seen) == due
                assert path != "/same" or light.begins <= 1 + ANEW
        finally:
            for task in (*tasks, *passing):
                task.cancel()
            await asyncio.gather(*tasks, *passing, return_exceptions=True)


# the command


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    run = (sys.executable, "-m", "gateway", "reload", *arguments)
    return subprocess.run(run, capture_output=True, text=True, timeout=WAIT_TIMEOUT_S)


@pytest.mark.needs("process")
async def test_the_command_checks_first_and_then_tells_the_process(
    kafka: EmbeddedKafka, tmp_path: Path
):
    pid = tmp_path / "gateway.pid"
    config = config_of(kafka, at("/same"))
    async with running_gateway_process(config, arguments=["--pid-file", str(pid)]) as gateway:
        assert int(pid.read_text()) == gateway.pid
        ask = ["-c", str(gateway.config_path), "--pid-file", str(pid)]
        told = await asyncio.to_thread(command, *ask)
        assert (told.returncode, "reads it again" in told.stdout) == (0, True)
        await wait_until(lambda: RELOADED in gateway.log, gateway.read_log_tail)
        gateway.write_config(config | {"routs": []})
        wrong = await asyncio.to_thread(command, *ask)
        assert wrong.returncode == 78 and "routes" in wrong.stderr
        assert gateway.log.count(RELOADED) == 1 and REFUSED not in gateway.log
        gateway.write_config(config)
        await gateway.stop()
        assert not pid.exists()
        gone = await asyncio.to_thread(command, "-c", str(gateway.config_path), "--pid", "4194304")
        assert gone.returncode == 1 and "no process" in gone.stderr
    neither = await asyncio.to_thread(command, "-c", str(gateway.config_path))
    assert neither.returncode == 2


@pytest.mark.needs("process")
@pytest.mark.parametrize("text", ["", "many\n", "-7\n"])
async def test_a_file_that_holds_no_process_id_is_named(
    kafka: EmbeddedKafka, tmp_path: Path, text: str
):
    file, config = tmp_path / "pid", tmp_path / "gateway.yaml"
    file.write_text(text)
    config.write_text(
        f"name: x\nkafka: {{servers: ['{kafka.bootstrap[0]}'], topics: [{{name: orders}}]}}\n"
    )
    told = await asyncio.to_thread(command, "-c", str(config), "--pid-file", str(file))
    assert told.returncode == 2 and "no process id" in told.stderr


# what a reload would change


@pytest.mark.needs("process")
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_dry_run_says_what_a_reload_then_does_and_changes_nothing(
    kafka: EmbeddedKafka, oracle: StreamOracle, workers: int
):
    def build(*routes: Any, **sections: Any) -> dict[str, Any]:
        listen = {"workers": workers}
        return config_of(kafka, *routes, admin=ADMIN_SECTION, listen=listen, **sections)

    old = build(at("/same"), at("/changed"), at("/gone"))
    new = build(at("/same"), at("/changed", filters=[{"key": "b"}]), at("/new"), name="other")
    async with running_gateway_process(old) as gateway, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(RawClient(f"{gateway.base_url}/{path}"))
            for path in ("same", "changed", "changed", "gone")
        ]
        for client in clients:
            await begun(client)
        gateway.write_config(new)
        async with open_admin_api(gateway) as http:
            said = (await http.post("/reload?dryRun=true")).json()
            assert said["routes"] == {"same": 1, "changed": 1, "added": 1, "removed": 1}
            assert said["streams"] == {"untouched": 1, "moved": 2, "ended (route-removed)": 1}
            assert "name" in said["kept"] and said["missing"] == []
            assert {
                each["route"]: (each["change"], each["streams"]) for each in said["changes"]
            } == {
                "/changed": ("changed", {"moved": 2}),
                "/new": ("added", {}),
                "/gone": ("removed", {"ended (route-removed)": 1}),
            }
            command = [*GATEWAY, "reload", "-c", str(gateway.config_path), "--dry-run"]
            command += [str(http.base_url)]
            printed = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=120, check=False
            )
            assert printed.returncode == 0, printed
            assert "removed /gone: streams: 1 ended (route-removed)" in printed.stdout
            assert "needs a restart: name" in printed.stdout

            await oracle.produce_records("orders", 1, key=b"a")
            for client in clients:
                await client.wait_for_events(lambda _, client=client: keys(client) == ["a"])
                assert len(named(client, "begin")) == 1 and not named(client, "end")
            assert RELOADED not in gateway.log

            done = (await http.post("/reload")).json()
            same = ("routes", "streams", "changes", "kept")
            assert {name: done[name] for name in same} == {name: said[name] for name in same}
            line = gateway.log.rpartition(RELOADED)[2].splitlines()[0]
            assert "changed: /changed; added: /new; removed: /gone" in line


async def test_a_dry_run_of_a_wrong_file_says_what_is_wrong(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    good = config_of(kafka, at("/same"), admin=ADMIN_SECTION)
    async with running_gateway(good) as gateway, open_admin_api(gateway) as http:
        gateway.write_config(config_of(kafka, at("/same", fromat="value"), admin=ADMIN_SECTION))
        answer = await http.post("/reload?dryRun=true")
        assert answer.status_code == 422 and "format" in answer.json()["problems"][0]
        for query in ("dryrun=true", "dryRun=yes"):
            answer = await http.post(f"/reload?{query}")
            assert answer.status_code == 400 and "?dryRun=true" in answer.json()["detail"]
        assert RELOADED not in caplog.text and REFUSED not in caplog.text
