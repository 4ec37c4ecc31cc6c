"""`gateway init` writes a first configuration that works."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.brokers import embedded_kafka
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.cli.starter_config import GuardPreset, SecurityPreset, StarterConfig
from gateway.config import Jwt, Settings, loads
from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 1, "stock": 1, "__own": 1})


def init(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["init", *arguments], prog_name="gateway", env=environment)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load_written(folder: Path, environ: Mapping[str, str] | None = None) -> Settings:
    return loads((folder / "gateway.yaml").read_text(), environ=environ or {})


def test_the_topics_of_the_cluster_become_routes_and_the_file_passes_check_cluster(
    folder: Path, kafka: EmbeddedKafka
):
    result = init("--servers", ",".join(kafka.bootstrap))
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    settings = load_written(folder)
    assert [route.when[0].path for route in settings.routes] == ["/events/orders", "/events/stock"]
    assert (folder / "gateway.yaml").read_text().startswith("# yaml-language-server: $schema=")
    checked = CliRunner().invoke(app, ["check", "--cluster"], prog_name="gateway")
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("security", list(SecurityPreset))
@pytest.mark.parametrize("guard", list(GuardPreset))
def test_every_preset_gives_a_configuration_without_a_secret(
    folder: Path, security: SecurityPreset, guard: GuardPreset
):
    arguments = ["--security", security, "--guard", guard, "--issuer", "https://login.example"]
    result = init("--topic", "orders", *arguments, "--origin", "http://localhost:5173")
    assert result.exit_code == 0, result.output
    file = folder / "file.pem"
    file.touch()
    values = {name: str(file) for name in ("KAFKA_CA", "KAFKA_CERTIFICATE", "KAFKA_KEY")}
    values |= {"KAFKA_USERNAME": "u", "KAFKA_PASSWORD": "hunter2", "DEV_TOKEN": "t"}
    values |= {"KAFKA_TOKEN_URL": "https://a", "KAFKA_CLIENT_ID": "c", "KAFKA_CLIENT_SECRET": "s"}
    settings = load_written(folder, values)
    kafka = settings.clusters[""]
    assert (kafka.security.tls is None) == (security is SecurityPreset.NONE)
    assert [list(route.guarded) for route in settings.routes] == [
        [] if guard is GuardPreset.NONE else ["login"]
    ]
    named = result.stdout.partition("set the variables: ")[2].partition("\n")[0]
    assert set(named.split(", ")) <= {*values, ""}
    assert settings.listen.access_control.allow.origins == ("http://localhost:5173",)


def test_a_jwt_guard_discovers_its_keys(folder: Path):
    arguments = ["--guard", "jwt", "--issuer", "https://login.example", "--audience", "shop"]
    assert init("-t", "orders", *arguments).exit_code == 0
    guard = load_written(folder).guards["login"]
    assert isinstance(guard, Jwt)
    assert (guard.issuer, guard.audience, guard.keys) == ("https://login.example", "shop", None)


def test_a_file_is_replaced_only_by_force(folder: Path):
    (folder / "gateway.yaml").write_text("mine")
    result = init("-t", "orders")
    assert (result.exit_code, "--force" in result.stderr) == (1, True)
    assert (folder / "gateway.yaml").read_text() == "mine"
    assert init("-t", "orders", "--force").exit_code == 0
    assert load_written(folder).routes


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["-t", "a b"], 2, "topic name"),
        (["-t", "orders", "--servers", "nowhere"], 2, "host:port"),
        (["-t", "orders", "--origin", "shop"], 2, "origin"),
        (["-t", "orders", "--guard", "jwt"], 2, "--issuer"),
        (["-t", "orders", "--guard", "jwt", "--issuer", "shop"], 2, "issuer that is a URL"),
        (["--servers", "127.0.0.1:1"], 1, "give --topic"),
        (["--security", "scram-512"], 1, "'KAFKA_USERNAME' is not set"),
        (["--security", "kerberos"], 2, "scram-512"),
    ],
)
def test_nothing_is_written_if_something_is_wrong(
    folder: Path, arguments: list[str], code: int, word: str
):
    result = init(*arguments)
    assert (result.exit_code, word in result.output) == (code, True), result.output
    assert list(folder.iterdir()) == []


def test_texts_with_a_meaning_in_yaml_stay_texts():
    config = StarterConfig("a:1", topics=["null", "1", "a.b"], audience="x: ${env.Y}")
    settings = loads(config.to_yaml(), environ={})
    assert isinstance(settings.kafka.topics, tuple)
    assert [topic.name for topic in settings.kafka.topics] == ["null", "1", "a.b"]


async def test_on_a_terminal_it_asks_for_what_is_not_given(folder: Path, kafka: EmbeddedKafka):
    main, side = pty.openpty()
    answers = [",".join(kafka.bootstrap), "nothing", "none", "stock", "inline", "-"]
    os.write(main, "".join(f"{answer}\n" for answer in answers).encode())
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "gateway", "init", "mine.yaml"],
            stdin=side, capture_output=True, timeout=60, cwd=folder,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
    finally:
        os.close(main)
        os.close(side)
    assert done.returncode == 0, done.stderr
    assert b"[orders,stock]" in done.stderr, "the topics of the cluster are suggested"
    assert b"'nothing' is none of them" in done.stderr
    settings = loads((folder / "mine.yaml").read_text(), environ={"DEV_TOKEN": "t"})
    assert [str(route.with_.topic) for route in settings.routes] == ["stock"]
    assert list(settings.guards) == ["login"]
    assert b"gateway check -c mine.yaml --cluster" in done.stdout
