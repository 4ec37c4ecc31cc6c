"""`gateway init` writes a first configuration that works."""

from __future__ import annotations

import os
import pty
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import certifi
import pytest
from support.brokers import embedded_kafka
from support.fork_server import ForkedCommand
from support.waiting import wait_until
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


def is_written(folder: Path) -> bool:
    return (folder / "gateway.yaml").exists()


def test_the_topics_of_the_cluster_become_routes_and_the_file_passes_check_cluster(folder, kafka):
    result = init("--servers", ",".join(kafka.bootstrap))
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    settings = load_written(folder)
    assert [route.when[0].path for route in settings.routes] == ["/events/orders", "/events/stock"]
    assert (folder / "gateway.yaml").read_text().startswith("# yaml-language-server: $schema=")
    checked = CliRunner().invoke(app, ["check", "--cluster"], prog_name="gateway")
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize(
    ("security", "guard"),
    [
        *((security, GuardPreset.JWT) for security in SecurityPreset),
        *((SecurityPreset.SCRAM_512, guard) for guard in GuardPreset),
    ],
)
def test_every_preset_gives_a_configuration_without_a_secret(folder, security, guard):
    arguments = ["--security", security, "--guard", guard]
    arguments += ["--issuer", "https://login.example"] if guard is GuardPreset.JWT else []
    result = init("--topic", "orders", *arguments, "--origin", "http://localhost:5173")
    assert result.exit_code == 0, result.output
    file = folder / "file.pem"
    shutil.copy(certifi.where(), file)
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
    assert (guard.issuer, guard.audience) == (("https://login.example",), ("shop",))
    assert guard.keys is None


def test_an_issuer_means_a_guard(folder: Path):
    """Without --guard the configuration had no guard, and nothing said so."""
    assert init("-t", "orders", "--issuer", "https://login.example", "--yes").exit_code == 0
    settings = load_written(folder)
    assert isinstance(settings.guards["login"], Jwt)
    assert [list(route.guarded) for route in settings.routes] == [["login"]]


def test_the_next_steps_name_a_file_that_commands_would_not_find(folder: Path):
    """With GATEWAY_CONFIG they checked another file than the one that was written."""
    (folder / "other.yaml").touch()
    for variable in ("other.yaml", "none.yaml"):
        result = init("-t", "orders", "--force", GATEWAY_CONFIG=variable)
        assert "gateway check -c gateway.yaml --cluster" in result.stdout
    result = init("mine.yaml", "-t", "orders", "--force", GATEWAY_CONFIG="mine.yaml")
    assert "gateway check --cluster" in result.stdout
    result = init("a b.yaml", "-t", "orders")
    assert "gateway check -c 'a b.yaml' --cluster" in result.stdout


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
        (["-t", "orders", "--audience", "shop"], 2, "--issuer"),
        (["-t", "orders", "--guard", "none", "--issuer", "https://a.b"], 2, "--guard jwt"),
        (["-t", "orders", "--guard", "inline", "--audience", "shop"], 2, "--guard jwt"),
        (["-t", "orders", "--issuer", "shop"], 2, "issuer that is a URL"),
        (["--servers", "nowhere"], 2, "host:port"),
        (["-t", "orders", "--guard", "jwt", "--issuer", "shop"], 2, "issuer that is a URL"),
        (["--servers", "127.0.0.1:1"], 1, "give --topic"),
        (["--security", "scram-512"], 1, "'KAFKA_USERNAME' is not set"),
        (["--security", "kerberos"], 2, "scram-512"),
    ],
)
def test_nothing_is_written_if_something_is_wrong(folder, arguments, code, word):
    result = init(*arguments)
    assert (result.exit_code, word in result.output) == (code, True), result.output
    assert list(folder.iterdir()) == []


def test_texts_with_a_meaning_in_yaml_stay_texts():
    config = StarterConfig("a:1", topics=["null", "1", "a.b"], audience="x: ${env.Y}")
    settings = loads(config.to_yaml(), environ={})
    assert isinstance(settings.kafka.topics, tuple)
    assert [topic.name for topic in settings.kafka.topics] == ["null", "1", "a.b"]


@asynccontextmanager
async def running_init_on_terminal(
    folder: Path, *arguments: str
) -> AsyncIterator[tuple[ForkedCommand, int, Path]]:
    """The command, the terminal that it asks, and the file of all that it says."""
    main, side = pty.openpty()
    output = folder.with_name("output")
    with output.open("wb") as file:
        command = ForkedCommand(
            ["init", *arguments],
            {"PATH": os.environ["PATH"]},
            streams=[side, file.fileno(), file.fileno()],
            directory=folder,
        )
    try:
        yield command, main, output
    finally:
        command.kill()
        command.wait()
        os.close(main)
        os.close(side)


async def init_on_terminal(folder: Path, answers: Sequence[str], *arguments: str) -> str:
    """What it said, once it has written a file."""
    async with running_init_on_terminal(folder, *arguments) as (command, main, output):
        os.write(main, "".join(f"{answer}\n" for answer in answers).encode())
        await wait_until(lambda: command.poll() is not None, output.read_text)
        assert command.returncode == 0, output.read_text()
        return output.read_text()


@pytest.mark.needs("process")
async def test_on_a_terminal_it_asks_for_what_is_not_given(folder: Path, kafka: EmbeddedKafka):
    answers = [",".join(kafka.bootstrap), "nothing", "none", "stock", "inline", "-"]
    output = await init_on_terminal(folder, answers, "mine.yaml")
    assert "[orders,stock]" in output, "the topics of the cluster are suggested"
    assert "'nothing' is none of them" in output
    settings = loads((folder / "mine.yaml").read_text(), environ={"DEV_TOKEN": "t"})
    assert [str(route.with_.topic) for route in settings.routes] == ["stock"]
    assert list(settings.guards) == ["login"]
    assert "gateway check -c mine.yaml --cluster" in output


@pytest.mark.needs("process")
async def test_a_wrong_answer_is_asked_for_again(folder: Path, kafka: EmbeddedKafka):
    """All answers were discarded at the end, because of one of them."""
    answers = ["nowhere", ",".join(kafka.bootstrap), "none", "a b", ",", "stock"]
    answers += ["jwt", "shop", "https://login.example", "shop", "https://shop.example"]
    await init_on_terminal(folder, answers)
    settings = load_written(folder)
    assert settings.clusters[""].servers == tuple(kafka.bootstrap)
    assert [str(route.with_.topic) for route in settings.routes] == ["stock"]
    guard = settings.guards["login"]
    assert isinstance(guard, Jwt) and guard.issuer == ("https://login.example",)
    assert settings.listen.access_control.allow.origins == ("https://shop.example",)


@pytest.mark.needs("process")
async def test_an_issuer_that_is_given_is_not_asked_for_and_nor_is_the_guard(folder: Path):
    arguments = ["-s", "127.0.0.1:1", "-t", "orders", "--issuer", "https://login.example"]
    await init_on_terminal(folder, ["none", "-"], *arguments)
    assert isinstance(load_written(folder).guards["login"], Jwt)


@pytest.mark.needs("process")
@pytest.mark.parametrize(("is_interrupted", "code"), [(True, 130), (False, 1)])
async def test_the_end_at_a_prompt_is_an_exit_code_without_a_second_message(
    folder, is_interrupted, code
):
    """^C ended with 1 and `Aborted!`."""
    async with running_init_on_terminal(folder) as (command, main, output):
        await wait_until(lambda: "Kafka brokers" in output.read_text(), output.read_text)
        if is_interrupted:
            command.send_signal(signal.SIGINT)
        else:
            os.write(main, b"\x04")
        await wait_until(lambda: command.poll() is not None, output.read_text)
        assert (command.returncode, "Abort" in output.read_text()) == (code, False)
    assert not is_written(folder)
