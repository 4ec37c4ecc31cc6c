"""`gateway check FILE --cluster`: what a configuration needs of others, missing one by one."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AclOperation
from ruamel.yaml import YAML
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from support.admin import KafkaAdmin
from support.app_server import running_app
from support.certificates import CertificateAuthority
from support.fake_broker import BrokerRequest, FakeBroker
from support.gateways import build_config
from support.issuer import JwksApp, TokenIssuer
from support.local_kafka import RiggedKafka
from support.otlp import OtlpCollector, running_collector
from support.secure_kafka import grant_access
from typer.testing import CliRunner

from gateway import cli
from gateway.kafka.embedded import EmbeddedKafka

AWAY = "127.0.0.1:1"
PASSWORD = "a-password-nobody-sees"
BUSY = "60s"  # what a server may take on a machine that does much else


@dataclass
class Site:
    """An application that is asked who somebody is, and a registry."""

    says: int = 401
    lists: int = 200
    metadata: dict[str, str] = field(default_factory=dict)

    async def describe_issuer(self, request: Request) -> Response:
        body = json.dumps(self.metadata) if self.metadata else ""
        return Response(body, 200 if body else 404)

    async def who(self, request: Request) -> Response:
        return Response(status_code=self.says)

    async def subjects(self, request: Request) -> Response:
        known = request.headers.get("authorization", "").startswith("Basic ")
        return Response("[]", self.lists if known else 401)

    @property
    def app(self) -> Starlette:
        metadata = "/.well-known/openid-configuration"
        return Starlette(
            routes=[
                Route("/who", self.who),
                Route("/registry/subjects", self.subjects),
                Route(metadata, self.describe_issuer),
            ]
        )


@dataclass
class World:
    """All that `config` needs, until a test takes something of it away."""

    config: dict[str, Any]
    kafka: EmbeddedKafka
    keys: JwksApp
    site: Site
    back_end: OtlpCollector
    authority: CertificateAuthority

    @property
    def of_kafka(self) -> dict[str, Any]:
        return self.config["kafka"]

    def guard(self, name: str) -> dict[str, Any]:
        return self.config["guards"][name]


class Checked(NamedTuple):
    code: int
    found: dict[str, tuple[str, str]]  # by subject: state and detail


async def check(config: Mapping[str, Any], folder: Path) -> Checked:
    """As lines of JSON. In a thread: what it asks may be served by the test's own loop."""
    file = written(config, folder)
    arguments = ["check", str(file), "--cluster", "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, cli.app, arguments)
    assert PASSWORD not in result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines, result.output
    found = {each["subject"]: (each["state"], each["detail"]) for each in lines}
    return Checked(result.exit_code, found)


def written(config: Mapping[str, Any], folder: Path) -> Path:
    file, text = folder / "gateway.yaml", StringIO()
    YAML().dump(dict(config), text)
    file.write_text(text.getvalue())
    return file


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    keys, site = JwksApp(TokenIssuer("ES256")), Site()
    house = CertificateAuthority(tmp_path, valid_days=400)
    pem = str(house.issue_certificate("web", valid_days=90))
    with (
        EmbeddedKafka({"orders": 3, "payments": 1}, nodes=2, fetch_version=11) as kafka,
        running_collector() as back_end,
    ):
        async with running_app(keys) as issuer, running_app(site.app) as application:
            config = build_config(
                kafka.bootstrap,
                ["orders", "payments"],
                kafka={"bootstrap": ["orders"], "requestTimeout": "5s"},
                listen={"tls": {"certificate": pem, "key": pem, "ca": str(house.certificate_path)}},
                guards={
                    "login": {"type": "jwt", "keys": f"{issuer}/jwks", "jwks": {"timeout": BUSY}},
                    "app": {"type": "http", "url": f"{application}/who", "timeout": BUSY},
                    "badge": {"type": "x509"},
                },
                catalogs={
                    "schemas": {
                        "type": "schema-registry",
                        "url": f"{application}/registry",
                        "username": "gateway",
                        "password": PASSWORD,
                        "timeout": BUSY,
                    }
                },
                telemetry={"metrics": {"otlp": back_end.url}, "traces": {"otlp": back_end.url}},
            )
            yield World(config, kafka, keys, site, back_end, house)


async def test_a_configuration_that_lacks_nothing_is_ok(world: World, tmp_path: Path):
    code, found = await check(world.config, tmp_path)
    assert {subject: state for subject, (state, _) in found.items() if state != "ok"} == {}
    assert code == 0
    assert [subject.split(" ")[0] for subject in found] == [
        "broker", "broker", "topic", "topic", "catalog", "guard", "guard",
        "telemetry.metrics", "telemetry.traces", "listen.tls.certificate", "listen.tls.ca",
    ]  # fmt: skip
    assert found["topic orders"] == ("ok", "3 partitions, may be read")
    sent = sorted(path for path, _, _ in world.back_end.requests)
    assert sent == ["/v1/metrics", "/v1/traces"]
    assert not world.back_end.spans and not world.back_end.metrics


async def test_the_keys_of_an_issuer_are_found_by_its_metadata(world: World, tmp_path: Path):
    keys, issuer = world.guard("login").pop("keys"), world.guard("app")["url"].removesuffix("/who")
    world.guard("login")["issuer"] = issuer
    for metadata, state, word in (
        ({"issuer": issuer, "jwks_uri": keys}, "ok", "1 key for ES256"),
        ({"issuer": keys, "jwks_uri": keys}, "fails", "correct issuer"),
        ({"issuer": issuer, "jwks_uri": f"http://{AWAY}"}, "fails", "cannot be fetched"),
        ({}, "fails", "answers 404 without metadata"),
    ):
        world.site.metadata = metadata
        found = (await check(world.config, tmp_path)).found["guard login"]
        assert (found[0], word in found[1]) == (state, True), found


Breaks = Callable[[World], object]


def away(world: World, name: str, option: str) -> None:
    world.guard(name)[option] = f"http://{AWAY}/"


def otherwise(world: World, **pem: str) -> None:
    world.config["listen"]["tls"].update(pem)


def routed(world: World, **options: Any) -> None:
    world.config["routes"].append({"when": [{"path": "/more/{topic}"}], "with": options})


BROKEN: dict[str, tuple[Breaks, str, str, str]] = {
    "a topic's name is misspelt": (
        lambda w: w.of_kafka["topics"].append({"name": "paymens"}),
        "topic paymens", "fails", "did you mean 'payments'?",
    ),
    "a topic is not there": (
        lambda w: w.kafka.delete_topic("payments"), "topic payments", "fails", "create it",
    ),
    "a server is away, others answer": (
        lambda w: w.of_kafka["servers"].append(AWAY), f"server {AWAY}", "warning",
        "other servers answer",
    ),
    "all servers are away": (
        lambda w: w.of_kafka.update(servers=[AWAY]), f"server {AWAY}", "fails", "cannot be reached",
    ),
    "a partition has no leader": (
        lambda w: w.kafka.lead("orders", 2, None), "topic orders", "warning", "partition 2 of 3",
    ),
    "nobody tells what may be written": (
        lambda w: routed(w, topic="${params.topic}", produce=True),
        "topic orders", "warning", "whether it may be written",
    ),
    "no topic fits a pattern": (
        lambda w: routed(w, topic="${params.topic}", allow=["log-*"]),
        "routes[4].with.allow[0] log-*", "warning", "no topic matches",
    ),
    "a topic that a path may choose is not there": (
        lambda w: routed(w, topic="${params.topic}", allow=["logs"]),
        "topic logs", "warning", "create it",
    ),
    "the issuer is away": (
        lambda w: away(w, "login", "keys"), "guard login", "fails", "cannot be reached",
    ),
    "the issuer fails": (
        lambda w: setattr(w.keys, "status", 500), "guard login", "fails", "answers 500",
    ),
    "the issuer lists no key": (
        lambda w: setattr(w.keys, "body", b'{"keys": []}'), "guard login", "fails", "no key",
    ),
    "the issuer talks nonsense": (
        lambda w: setattr(w.keys, "body", b"<html>"), "guard login", "fails", "no keys",
    ),
    "the issuer's keys are for another algorithm": (
        lambda w: w.guard("login").update(algorithms=["RS256"]), "guard login", "fails", "ES256",
    ),
    "the application is away": (
        lambda w: away(w, "app", "url"), "guard app", "fails", "cannot be reached",
    ),
    "the application is elsewhere": (
        lambda w: setattr(w.site, "says", 404), "guard app", "fails", "answers 404",
    ),
    "the application lets everybody in": (
        lambda w: setattr(w.site, "says", 200), "guard app", "warning", "without credentials",
    ),
    "the registry refuses the password": (
        lambda w: setattr(w.site, "lists", 403), "catalog schemas", "fails", "password",
    ),
    "the registry is elsewhere": (
        lambda w: setattr(w.site, "lists", 404), "catalog schemas", "fails", "correct url",
    ),
    "the back end refuses": (
        lambda w: setattr(w.back_end, "status", 401), "telemetry.traces", "fails", "headers",
    ),
    "the back end is away": (
        lambda w: w.config["telemetry"].update(metrics={"otlp": f"http://{AWAY}"}),
        "telemetry.metrics", "fails", "cannot be reached",
    ),
    "InfluxDB is away": (
        lambda w: w.config["telemetry"]["metrics"].update(
            influx={"url": f"http://{AWAY}", "bucket": "b"}
        ),
        "telemetry.metrics.influx", "fails", "cannot be reached",
    ),
    "the certificate is expired": (
        lambda w: otherwise(w, **dict.fromkeys(("certificate", "key"), pem_of(w, "old", -1))),
        "listen.tls.certificate", "fails", "expired",
    ),
    "the key is another's": (
        lambda w: otherwise(w, key=pem_of(w, "other", 90)),
        "listen.tls.certificate", "fails", "the key of another",
    ),
}  # fmt: skip


SEVERAL = {"all servers are away", "nobody tells what may be written",
           "the back end refuses"}  # fmt: skip


def pem_of(world: World, name: str, days: float) -> str:
    return str(world.authority.issue_certificate(name, days))


@pytest.mark.parametrize("what", BROKEN)
async def test_what_is_missing_is_said_and_nothing_else(world: World, tmp_path: Path, what: str):
    breaks, subject, state, piece = BROKEN[what]
    breaks(world)
    code, found = await check(world.config, tmp_path)
    bad = {name: told for name, told in found.items() if told[0] != "ok"}
    of_it = [told for name, told in bad.items() if name.startswith(subject)]
    assert of_it and of_it[0][0] == state and piece in of_it[0][1], found
    assert code == (1 if state == "fails" else 0)
    if what not in SEVERAL:
        assert len(bad) == 1, bad


async def test_a_broker_that_clients_are_sent_to_and_cannot_reach_is_told(tmp_path: Path):
    """The server answers, and what it names (advertised.listeners) is away."""

    async def names_another(asked: BrokerRequest) -> bytes:
        """Metadata v8: one broker, no topics."""
        broker = struct.pack(">ih9sih", 7, 9, b"127.0.0.1", 1, -1)
        return struct.pack(">ii", 0, 1) + broker + struct.pack(">h1siii", 1, b"c", 7, 0, 0)

    async with FakeBroker(names_another) as server:
        server.supported_versions[3] = (0, 8)
        at = f"127.0.0.1:{server.address[1]}"
        code, found = await check(build_config(at, []), tmp_path)
    assert code == 1 and found[f"server {at}"] == ("ok", "names 1 broker")
    state, detail = found[f"broker 7 at {AWAY}"]
    assert state == "fails"
    assert "cannot be reached" in detail and "advertised.listeners" in detail


async def test_servers_of_two_clusters_are_told(world: World, tmp_path: Path):
    with EmbeddedKafka() as other:
        world.of_kafka["servers"] += other.bootstrap
        code, found = await check(world.config, tmp_path)
    assert code == 1 and found["servers"][1].startswith("they belong to 2 clusters")


async def test_a_server_that_says_nothing_is_not_waited_for_for_long(tmp_path: Path):
    async with FakeBroker(is_mute=True) as frozen:
        server = f"127.0.0.1:{frozen.address[1]}"
        config = build_config(server, ["orders"], kafka={"requestTimeout": "200ms"})
        code, found = await check(config, tmp_path)
    assert code == 1
    assert (
        found[f"server {server}"][0] == "fails"
        and "no answer in time" in found[f"server {server}"][1]
    )
    assert found["topics"][0] == "warning", "nothing is said of what was not tried"


def test_people_get_a_line_for_each_finding_and_a_verdict(tmp_path: Path):
    with EmbeddedKafka({"orders": 3}) as kafka:
        file = written(build_config(kafka.bootstrap, ["orders", "order"]), tmp_path)
        done = CliRunner().invoke(cli.app, ["check", str(file), "--cluster"])
    *lines, verdict = done.stdout.splitlines()
    assert (done.exit_code, done.stderr) == (1, "")
    assert [line.split(" ")[0] for line in lines] == ["ok", "ok", "fails"]
    assert lines[0] == f"ok       broker 1 at {kafka_at(lines[0])}: answers"
    assert lines[1] == "ok       topic orders: 3 partitions, may be read"
    assert lines[2].endswith("topic order: no broker knows it; did you mean 'orders'?")
    assert verdict == f"{file}: 1 of 3 fail"


def kafka_at(line: str) -> str:
    return line.split(" at ")[1].split(": answers")[0]


@pytest.mark.needs("process")
def test_on_a_terminal_a_bar_shows_what_has_not_answered_and_leaves_nothing(tmp_path: Path):
    """On stderr alone: what is piped elsewhere is lines."""
    ours, terminal = os.openpty()
    with EmbeddedKafka({"orders": 3}) as kafka, ThreadPoolExecutor() as beside:
        kafka.delay(1, 0.3)  # the bar is drawn ten times a second
        file = written(build_config(kafka.bootstrap, ["orders"]), tmp_path)
        command = [sys.executable, "-m", "gateway", "check", str(file), "--cluster"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        reading = beside.submit(read_all, ours)
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=terminal, timeout=60, env=environment
            )
        finally:
            os.close(terminal)
        shown = reading.result(30)
    assert done.returncode == 0 and b"\x1b" not in done.stdout
    assert f"server {kafka_at(done.stdout.decode())}" in shown
    assert shown.endswith("\x1b[2K"), "the bar's own line is cleared"


def read_all(terminal: int) -> str:
    """Until nobody writes to it any more."""
    said = b""
    with suppress(OSError):  # Linux's way to tell the end
        while piece := os.read(terminal, 4096):
            said += piece
    os.close(terminal)
    return said.decode()


def test_an_embedded_kafka_is_not_there_to_be_tried(tmp_path: Path):
    file = written(build_config("embedded", ["orders"], kafka={"servers": "embedded"}), tmp_path)
    result = CliRunner().invoke(cli.app, ["check", str(file), "--cluster"])
    assert result.exit_code == 0 and "created when the gateway starts" in result.stdout


@pytest.mark.parametrize("also", [["--print"], ["--schema"]])
def test_it_is_not_for_what_needs_no_cluster(tmp_path: Path, also: list[str]):
    file = written(build_config("a:9092", ["orders"]), tmp_path)
    given = ["check", "--cluster", *also, *([] if also == ["--schema"] else [str(file)])]
    assert CliRunner().invoke(cli.app, given).exit_code == 2
    assert CliRunner().invoke(cli.app, ["check", str(file), "--json"]).exit_code == 2


# rights, on a broker that has some


SASL = {"mechanism": "plain", "username": "carol", "password": "pw"}
TOPICS = ("tried-all", "tried-read", "tried-described", "tried-nothing")


@pytest.fixture(scope="module")
def secured(session_secured: RiggedKafka) -> RiggedKafka:
    """carol may do something else with each of the topics."""
    admin = KafkaAdmin(session_secured.bootstrap)
    for name in TOPICS:
        admin.create_topic(name, 2)
    grant_access(admin, "User:carol", TOPICS[0], AclOperation.READ, AclOperation.WRITE)
    grant_access(admin, "User:carol", TOPICS[1], AclOperation.READ)
    grant_access(admin, "User:carol", TOPICS[2], AclOperation.DESCRIBE)
    return session_secured


def for_carol(kafka: RiggedKafka, *routes: Mapping[str, Any], **sasl: str) -> dict[str, Any]:
    servers = ",".join(kafka.get_addresses("SASL"))
    return build_config(servers, TOPICS, routes, kafka={"security": {"sasl": SASL | sasl}})


async def test_what_may_not_be_read_or_written_is_said_as_kafka_says_it(
    secured: RiggedKafka, tmp_path: Path
):
    writes = {"when": [{"path": "/write/{name}"}],
              "with": {"topic": "tried-${params.name}", "produce": True}}  # fmt: skip
    code, found = await check(for_carol(secured, writes), tmp_path)
    assert code == 1
    assert found["topic tried-all"] == ("ok", "2 partitions, may be read and written")
    assert found["topic tried-read"] == (
        "fails", "it may not be written, but a route writes to it; allow the gateway WRITE on it",
    )  # fmt: skip
    assert found["topic tried-described"][0] == "fails"
    assert "may not be described" in found["topic tried-nothing"][1]
    admin = KafkaAdmin(secured.bootstrap)
    ends = [
        await asyncio.to_thread(admin.get_high_watermark, TOPICS[0], number) for number in (0, 1)
    ]
    assert ends == [0, 0], "nothing was written to find that out"


async def test_what_is_only_read_needs_no_right_to_write(secured: RiggedKafka, tmp_path: Path):
    code, found = await check(for_carol(secured), tmp_path)
    assert code == 1
    assert found["topic tried-read"] == ("ok", "2 partitions, may be read")
    assert "allow the gateway READ" in found["topic tried-described"][1]


async def test_a_pattern_counts_what_may_not_be_read(secured: RiggedKafka, tmp_path: Path):
    chosen = {"when": [{"path": "/read/{names}"}],
              "with": {"topic": "${params.names}", "allow": ["tried-*"]}}  # fmt: skip
    _, found = await check(for_carol(secured, chosen), tmp_path)
    state, detail = found["routes[0].with.allow[0] tried-*"]
    assert state == "warning" and detail.startswith(
        "1 of 3 topics may not be read: tried-described"
    )


async def test_a_wrong_password_is_the_reason_that_is_told(secured: RiggedKafka, tmp_path: Path):
    code, found = await check(for_carol(secured, password=PASSWORD), tmp_path)
    (server,) = [detail for name, (_, detail) in found.items() if name.startswith("server ")]
    assert code == 1 and "refuses the login" in server


async def test_brokers_whose_certificate_is_of_an_unknown_authority_are_told(
    secured: RiggedKafka, authority: CertificateAuthority, tmp_path: Path
):
    servers = ",".join(secured.get_addresses("TLS"))
    for ca, failed in (
        (authority.certificate_path, False),
        (CertificateAuthority(tmp_path, valid_days=90).certificate_path, True),
    ):
        config = build_config(servers, (), kafka={"security": {"tls": {"ca": str(ca)}}})
        _, found = await check(config, tmp_path)
        reached = [state for name, (state, _) in found.items() if name.startswith("server ")]
        assert (reached == ["fails"]) is failed, found
