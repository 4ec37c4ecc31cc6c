"""How commands find a configuration, and how `gateway run` starts without one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.fork_server import ForkedCommand, run_forked
from support.records import RecordToSend, produce_records
from support.waiting import wait_until
from typer.main import get_command
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.cli.options import SERVERS_VARIABLES
from gateway.config import list_variables, loads
from gateway.config.sections.variables import COMMAND_VARIABLES, OLD_NAMES
from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 1})

CONFIG = "kafka: {servers: 'a:9092', topics: [orders]}\nroutes: [{path: /o, topic: orders}]\n"


def gateway(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, prog_name="gateway", env=environment)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings that would be served."""
    served: list[Any] = []

    def serve(settings: Any, **options: Any) -> int:
        served.append(settings)
        assert options["load"]() == settings
        print(*options["notes"], sep="\n")
        return 0

    monkeypatch.setattr("gateway.web.app.server.serve", serve)
    return served


def test_run_streams_topics_without_a_file(folder: Path, served: list[Any]):
    arguments = ["--servers", "a:1,b:1", "--topic", "orders", "-t", "stock", "-t", "orders"]
    result = gateway("run", *arguments, "--origin", "http://localhost:5173", "--port", "9000")
    assert result.exit_code == 0, result.output
    (settings,) = served
    assert settings.kafka.servers == ("a:1", "b:1")
    assert [(route.when[0].path, str(route.with_.topic)) for route in settings.routes] == [
        ("/events/orders", "orders"),
        ("/events/stock", "stock"),
    ]
    access = settings.listen.access_control
    assert (access.policy, access.allow.origins) == ("cross-origin", ("http://localhost:5173",))
    assert "http://127.0.0.1:9000/events/orders" in result.stdout
    assert "--print-config > gateway.yaml" in result.stdout


def test_the_printed_configuration_serves_the_same(folder: Path, served: list[Any]):
    arguments = ["run", "-t", "orders", "-s", "a:1", "--origin", "http://b", "--port", "9000"]
    printed = gateway(*arguments, "--print-config")
    assert (printed.exit_code, served) == (0, [])
    gateway(*arguments)
    assert loads(printed.stdout) == served[0]
    (folder / "gateway.yaml").write_text(printed.stdout)
    assert gateway("check").exit_code == 0
    assert printed.stdout.startswith("# yaml-language-server: $schema=")


def test_the_command_that_is_shown_prints_that_configuration(folder: Path, served: list[Any]):
    result = gateway("run", "-t", "orders", "-s", "a:1", "--host", "0.0.0.0", "--port", "1")
    command = result.stdout.partition("to keep this as a file: ")[2].partition(" > ")[0]
    printed = gateway(*command.split()[1:])
    assert loads(printed.stdout) == served[0]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--topic", "a/b"], "topic name"),
        (["--topic", "orders", "--servers", "nowhere"], "host:port"),
        (["--topic", "orders", "--origin", "localhost:5173"], "origin"),
        (["--topic", "orders", "-c", __file__], "either --config or --topic"),
        (["--print-config"], "--topic"),
    ],
)
def test_wrong_values_of_a_start_without_a_file_are_wrong_usage(folder, arguments, word):
    result = gateway("run", *arguments)
    assert (result.exit_code, word in result.output) == (2, True), result.output


COMMANDS: Sequence[Sequence[str]] = (
    ["run"],
    ["check"],
    ["config"],
    ["reload", "--pid", "1"],
    ["sidecar"],
    ["pipeline", "list"],
    ["pipeline", "run", "all"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_a_configuration_all_ways_to_give_one_are_named(folder, command):
    """Commands said only that `--config` was missing."""
    result = gateway(*command)
    assert result.exit_code == 2
    assert all(way in result.output for way in ("-c FILE", "GATEWAY_CONFIG", "gateway.yaml"))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_default_configuration_is_read(folder: Path, command: Sequence[str]):
    (folder / "gateway.yaml").write_text("kafak: {}\n")
    (folder / "other.yaml").write_text("oehtr: {}\n")
    result = gateway(*command)
    assert (result.exit_code, "gateway.yaml:1:1: unknown key 'kafak'" in result.stderr) == (
        78,
        True,
    )
    result = gateway(*command, GATEWAY_CONFIG="other.yaml")
    assert (result.exit_code, "other.yaml:1:1: unknown key 'oehtr'" in result.stderr) == (78, True)
    result = gateway(*command, GATEWAY_CONFIG="none.yaml")
    assert (result.exit_code, "none.yaml" in result.stderr) == (2, True)


def test_check_takes_the_file_both_ways_but_not_twice(folder: Path):
    (folder / "a.yaml").write_text(CONFIG)
    assert gateway("check", "a.yaml").stdout == gateway("check", "-c", "a.yaml").stdout
    assert gateway("check", "a.yaml", "-c", "a.yaml").exit_code == 2


def test_check_warns_about_old_spellings_and_unknown_variables(folder: Path):
    (folder / "gateway.yaml").write_text(f"{CONFIG}listen: {{drain-timeout: 3s}}\n")
    result = gateway("check", GATEWAY_LISTEN__PROT="1")
    assert (result.exit_code, result.stdout) == (0, "gateway.yaml: ok\n")
    assert "gateway.yaml:3:10: 'drain-timeout'" in result.stderr
    assert "did you mean GATEWAY_LISTEN__PORT?" in result.stderr


def test_the_command_line_overrides_variables_and_these_the_file(folder: Path, served: list[Any]):
    (folder / "gateway.yaml").write_text(f"{CONFIG}listen: {{port: 1, host: 127.0.0.1}}\n")
    environment = {"GATEWAY_LISTEN__PORT": "2", "GATEWAY_LISTEN__HOST": "localhost"}
    gateway("run", **environment)
    gateway("run", "--port", "3", "--servers", "b:1", "--origin", "http://a", **environment)
    first, second = served
    assert (first.listen.host, first.listen.port) == ("localhost", 2)
    assert (second.listen.host, second.listen.port) == ("localhost", 3)
    assert (first.kafka.servers, second.kafka.servers) == (("a:9092",), ("b:1",))
    assert second.listen.access_control.allow.origins == ("http://a",)


def test_run_needs_no_file_if_variables_have_the_configuration(folder: Path, served: list[Any]):
    result = gateway(
        "run",
        GATEWAY_KAFKA__SERVERS="a:1",
        GATEWAY_KAFKA__TOPICS="orders",
        GATEWAY_ROUTES="[{path: /o, topic: orders}]",
    )
    assert result.exit_code == 0, result.output
    assert served[0].routes[0].when[0].path == "/o"


def test_the_options_name_the_variable_of_servers_and_its_old_name():
    assert {old: new for new, old in [SERVERS_VARIABLES]} == OLD_NAMES


def test_the_printed_configuration_has_the_servers_of_the_environment(folder: Path):
    """It had the default, and so was not what `gateway run` would serve."""
    arguments = ("run", "--topic", "orders", "--print-config")
    printed = gateway(*arguments, GATEWAY_KAFKA__SERVERS="b:1,c:2").stdout
    assert 'servers: "b:1,c:2"' in printed
    option = gateway(*arguments, "--servers", "d:3", GATEWAY_KAFKA__SERVERS="b:1").stdout
    assert 'servers: "d:3"' in option


def test_the_topics_and_origins_of_the_command_line_override_variables(folder, served):
    """Variables overrode --topic and --origin, while others were printed than were served."""
    result = gateway(
        *("run", "--topic", "orders", "--origin", "http://a"),
        GATEWAY_ROUTES="[{path: /other, topic: other}]",
        GATEWAY_KAFKA__TOPICS="other",
        GATEWAY_LISTEN__ACCESS_CONTROL__POLICY="same-origin",
        GATEWAY_LISTEN__ACCESS_CONTROL__ALLOW__ORIGINS="http://b",
    )
    assert result.exit_code == 0, result.output
    (settings,) = served
    assert [(route.when[0].path, str(route.with_.topic)) for route in settings.routes] == [
        ("/events/orders", "orders")
    ]
    access = settings.listen.access_control
    assert (access.policy, access.allow.origins) == ("cross-origin", ("http://a",))
    assert "/events/orders" in result.stdout and "--origin http://a" in result.stdout


ENVIRONMENTS: Sequence[dict[str, str]] = (
    {},
    {"GATEWAY_KAFKA__SERVERS": "b:1,c:2"},
    {"GATEWAY_KAFKA_SERVERS": "b:1"},
    {"GATEWAY_LISTEN__PORT": "9000", "GATEWAY_LISTEN__HOST": "::1", "GATEWAY_MEMORY": "2GiB"},
    {
        "GATEWAY_LISTEN__ACCESS_CONTROL__POLICY": "cross-origin",
        "GATEWAY_LISTEN__ACCESS_CONTROL__ALLOW__ORIGINS": "http://a,http://b",
        "GATEWAY_LISTEN__DRAIN_TIMEOUT": "7s",
    },
    {
        "GATEWAY_KAFKA__SECURITY__SASL__MECHANISM": "scram-sha-512",
        "GATEWAY_KAFKA__SECURITY__SASL__USERNAME": "u",
        "GATEWAY_KAFKA__SECURITY__SASL__PASSWORD": "hunter2",
        "GATEWAY_GUARDS": "{login: {type: inline, users: {me: {token: hunter2}}}}",
    },
)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda each: next(iter(each), "none"))
def test_the_printed_configuration_is_the_one_that_the_environment_serves(
    folder, served, environment
):
    """Of all variables it had only that of the servers."""
    arguments = ["run", "-t", "orders", "--workers", "2"]
    started = gateway(*arguments, **environment)
    assert started.exit_code == 0, started.output
    printed = gateway(*arguments, "--print-config", **environment)
    command = started.stdout.partition("to keep this as a file: ")[2].partition(" > ")[0]
    assert gateway(*command.split()[1:], **environment).stdout == printed.stdout
    assert "hunter2" not in printed.stdout
    secrets = {"GUARDS_LOGIN_USERS_ME_TOKEN": "hunter2"}
    assert loads(printed.stdout, environ=environment | secrets) == served[0]


@pytest.mark.parametrize("name", ["GATEWAY_KAFKA__SERVERS", "GATEWAY_KAFKA_SERVERS"])
def test_the_variable_of_the_servers_has_two_names_in_all_commands(folder, served, name):
    """`run` ignored the one that the help of commands names, `topics` and others the other one."""
    for command in (["topics"], ["produce", "orders"]):
        assert "nowhere" in gateway(*command, **{name: "nowhere"}).output, command
    environment = {name: "127.0.0.1:1"}
    (folder / "gateway.yaml").write_text(CONFIG)
    for command in (["run"], ["run", "-c", "gateway.yaml"], ["run", "--topic", "orders"]):
        assert gateway(*command, **environment).exit_code == 0
    assert [settings.kafka.servers for settings in served] == [("127.0.0.1:1",)] * 3


def test_a_folder_as_the_default_configuration_is_called_one(folder: Path):
    """It was said not to exist."""
    result = gateway("check", GATEWAY_CONFIG=".")
    assert (result.exit_code, "is a folder" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--topic", "orders", "--pid-file", "none/gateway.pid"],
        ["run", "--topic", "orders", "--pid-file", "/dev/full"],
        ["broker", "--data", "/proc/none"],
        ["broker", "--data", "a-file/data"],
        ["init", "none/gateway.yaml", "--topic", "orders"],
        ["init", "/dev/full", "--force", "--topic", "orders"],
        ["tail", "orders", "--position", "none/position"],
    ],
    ids=" ".join,
)
def test_a_path_that_cannot_be_written_is_one_line(folder, served, command):
    """Each of these ended in a traceback."""
    (folder / "a-file").touch()
    result = gateway(*command)
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, served, len(result.stderr.splitlines())) == (1, [], 1), result.stderr
    assert result.stderr.startswith("gateway: ")


def test_the_file_of_the_process_id_is_there_while_it_runs(folder: Path, served: list[Any]):
    assert gateway("run", "-t", "orders", "--pid-file", "gateway.pid").exit_code == 0
    assert len(served) == 1 and list(folder.iterdir()) == []


def test_config_prints_the_settings_in_effect_and_where_they_are_from(folder: Path):
    (folder / "gateway.yaml").write_text(CONFIG)
    result = gateway("config", GATEWAY_LISTEN__PORT="9000")
    assert result.exit_code == 0
    assert result.stdout.startswith("# gateway.yaml\n# listen.port by GATEWAY_LISTEN__PORT\n")
    assert loads(result.stdout).listen.port == 9000


def test_config_lists_all_variables():
    table = gateway("config", "--env").stdout.splitlines()
    assert table[0].split() == ["VARIABLE", "TYPE", "DEFAULT", "DESCRIPTION"]
    rows = [json.loads(line) for line in gateway("config", "--env", "--json").stdout.splitlines()]
    assert len(table) - 1 == len(rows) == len(list_variables())
    assert rows[0]["name"] == "GATEWAY_NAME" and set(rows[0]) == {
        "name", "option", "type", "default", "description",
    }  # fmt: skip


def test_the_variables_of_commands_are_known():
    """Otherwise a command's own variable would be reported as one that sets nothing."""

    def iter_variables(command: Any) -> Any:
        for each in getattr(command, "commands", {}).values():
            yield from iter_variables(each)
        for parameter in command.params:
            envvar = parameter.envvar or ()
            yield from [envvar] if isinstance(envvar, str) else envvar

    options = {variable.name for variable in list_variables()}
    assert set(iter_variables(get_command(app))) <= COMMAND_VARIABLES | options | OLD_NAMES.keys()


@pytest.mark.needs("process")
async def test_the_kafka_of_the_default_configuration_is_the_one_that_is_read(folder, kafka):
    servers = ",".join(kafka.bootstrap)
    await produce_records(kafka.bootstrap, "orders", [RecordToSend(b"v", b"k")])
    (folder / "gateway.yaml").write_text(f"kafka: {{servers: '{servers}'}}\n")
    wrong = {"GATEWAY_KAFKA_SERVERS": "127.0.0.1:1"}
    (folder / "wrong.yaml").write_text("kafka: {servers: '127.0.0.1:1'}\n")
    arguments = ["tail", "orders", "--from", "earliest", "-n", "1", "--format", "value", "-q"]
    for options, environment in (
        ([], {}),
        (["-s", servers], wrong),
        (["-c", "wrong.yaml"], {"GATEWAY_KAFKA__SERVERS": servers}),
    ):
        done = await asyncio.to_thread(
            partial(run_forked, *arguments, *options, directory=folder, **environment)
        )
        assert (done.returncode, done.stdout) == (0, b"v\n"), done.stderr


@pytest.mark.needs("process")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_busy_port_is_refused_before_anything_is_announced(folder: Path, workers: str):
    """The addresses of the topics were printed first, as if they were served."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_forked("run", "-t", "orders", "--port", port, "--workers", workers)
    assert done.returncode == 1
    assert done.stderr.startswith(f"gateway: cannot listen on 127.0.0.1:{port} ".encode())
    assert (done.stdout, done.stderr.count(b"\n")) == (b"", 1)


@pytest.mark.smoke
async def test_a_real_start_without_a_file_streams(folder: Path, kafka: EmbeddedKafka):
    await produce_records(kafka.bootstrap, "orders", [RecordToSend(b"hello", b"k")])
    command = ["run", "-s", ",".join(kafka.bootstrap), "-t", "orders", "--port", "0"]
    log = folder / "log"
    process = ForkedCommand(command, {"PATH": os.environ["PATH"]}, log, directory=folder)
    try:
        await wait_until(lambda: log.exists() and "listening on" in log.read_text())
        (base,) = re.findall(r"listening on (\S+)", log.read_text())
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            answer = await http.get(f"{base}/events/orders?from=earliest&until=latest")
        assert "data: hello" in answer.text
    finally:
        process.kill()
        process.wait()
