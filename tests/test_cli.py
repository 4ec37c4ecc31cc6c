"""The commands as a shell sees them: help, exit codes, one line an error.

Rooms are replaced where the wiring is the subject, and real where the behaviour is.
"""

from __future__ import annotations

import hashlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from support.fork_server import run_forked
from typer.main import get_command
from typer.testing import CliRunner, Result

import gateway
from gateway import cli
from gateway.cli.sidecar import create_sidecar
from gateway.config import loads
from gateway.errors import ConfigError, GatewayError, KafkaError
from gateway.kafka.produce.line_producer import LineFormat

COMMANDS = ["run", "demo", "init", "check", "config", "topics", "produce", "tail", "broker"]


def gateway_with(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, prog_name="gateway")


def run_process(
    *arguments: str, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return run_forked(*arguments, stdin=stdin, **environment)


@pytest.fixture
def room(monkeypatch):
    """Puts a stand-in where a command imports its room from; records how it is called."""

    def replace(name: str, **functions: object) -> None:
        stand_in = ModuleType(name)
        vars(stand_in).update(functions)
        monkeypatch.setitem(sys.modules, name, stand_in)
        parent, _, child = name.rpartition(".")
        monkeypatch.setattr(f"{parent}.{child}", stand_in, raising=False)

    return replace


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_text("name: orders\n")
    return file


class Calls(list):
    def __call__(self, *args, **kwargs):
        self.append((args, kwargs))


def failing(error: BaseException):
    def fail(*args, **kwargs):
        raise error

    return fail


def command_paths(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command below a command; groups are left out."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield path
    for name, each in (subcommands or {}).items():
        yield from command_paths(each, *path, name)


@pytest.mark.parametrize("path", list(command_paths(get_command(cli.app))), ids=" ".join)
def test_the_help_of_every_command_has_an_example_and_the_exit_codes(path: tuple[str, ...]):
    result = gateway_with(*path, "--help")
    assert result.exit_code == 0
    text, _, options = result.output.partition("\nOptions:")
    assert re.search(rf"^  (.*\| )?gateway {' '.join(path)} ?", text, re.MULTILINE)
    assert "Exit codes: 0 success, 1 " in options


@pytest.mark.parametrize("group", [[], ["dlq"], ["pipeline"], ["replay"], ["token"]])
def test_the_lists_of_commands_show_whole_sentences(group: list[str]):
    listed = gateway_with(*group, "--help").output.partition("Commands:")[2]
    assert listed and "..." not in listed


def test_help_names_every_command_and_every_exit_code():
    result = gateway_with("--help")
    assert result.exit_code == 0
    assert all(f"\n  {command} " in result.output for command in COMMANDS)
    assert "78 wrong configuration" in result.output


@pytest.mark.smoke
def test_as_a_process_the_version_is_the_packages():
    command = [sys.executable, "-m", "gateway", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"gateway {gateway.__version__}\n")


@pytest.mark.needs("process")
def test_as_a_process_help_is_quick_for_it_imports_no_room():
    code = (
        "import sys; sys.argv = ['gateway', '--help']\n"
        "from gateway.cli import main\n"
        "try: main()\n"
        "finally: print([m for m in ('aiokafka', 'starlette', 'orjson') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--prot", "9000"], "--port"),
        (["produce", "t", "--key-seperator", ":"], "--key-separator"),
        (["produec", "t"], "produce"),
        (["tail", "t", "--form", "earliest"], "--from"),
        (["doctor", "--admin", "http://127.0.0.1:9901"], "URL without an option"),
        (["dlq", "show", "--name", "orders"], "TOPIC without an option"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(arguments, said):
    result = gateway_with(*arguments)
    assert result.exit_code == 2
    assert said in result.output.partition("Error: No such")[2]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["run"],
        ["run", "-c", "no-such.yaml"],
        ["run", "-c", __file__, "--debug", "kafak"],
        ["run", "-c", __file__, "--debug", "kafka", "--debug", "kafka.fecth"],
        ["sidecar", "-c", __file__, "--debug", "pipeline"],
        ["check"],
        ["check", "no-such.yaml"],
        ["demo", "--port", "70000"],
        ["demo", "--port", "http"],
        ["produce"],
        ["produce", "t", "--file", "no-such.txt"],
        ["produce", "t", "--key", "id", "--key-separator", ":"],
        ["produce", "t", "--key-separator", ""],
        ["produce", "t", "--headers", "novalue"],
        ["produce", "t", "--partition", "-1"],
        ["tail"],
        ["tail", "ftp://host/x"],
        ["tail", "localhost:8080/events/orders"],
        ["tail", "ws://localhost:8080/events/orders"],
        ["tail", "t", "--count", "0"],
        ["tail", "t", "--format", "xml"],
        ["tail", "t", "--header", "novalue"],
        ["tail", "t", "--header", "a: b\nc: d"],
        ["tail", "http://localhost/x", "--config", __file__],
        # These were ignored.
        ["tail", "http://localhost/x", "--servers", "a:1"],
        ["tail", "t", "--cacert", __file__],
        ["tail", "t", "--insecure"],
        ["tail", "t", "--header", "a: b"],
        ["tail", "t", "--token", "a"],
        # These were to be created first, which Kafka refuses.
        ["produce", "a b"],
        ["topics", "a b"],
        ["topics", ".."],
        ["broker", "--nodes", "2"],
        ["run", "-c", __file__, "--workers", "0"],
        ["broker", "--port", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(arguments):
    result = gateway_with(*arguments)
    assert result.exit_code == 2
    assert "Usage: gateway" in result.output


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError(["g.yaml:1:2: a", "g.yaml:3:4: b"]), 78, "g.yaml:1:2: a\ng.yaml:3:4: b\n"),
        (KafkaError("no answer; wait"), 1, "gateway: no answer; wait\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)  # fmt: skip
def test_what_a_room_raises_is_told_without_a_traceback(room, config, error, code, said):
    room("gateway.config", load=failing(error))
    room("gateway.web.app.server", serve=Calls())
    result = gateway_with("run", "-c", str(config))
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", said)


def test_debug_shows_where_an_error_comes_from(room, config):
    room("gateway.config", load=failing(GatewayError("no")))
    room("gateway.web.app.server", serve=Calls())
    result = gateway_with("--debug", "run", "-c", str(config))
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("gateway: no\n")


def test_run_serves_what_was_loaded(room, config):
    serve = Calls()
    room("gateway.config", load=lambda path, **_: ("settings of", path))
    room("gateway.web.app.server", serve=serve)
    result = gateway_with("run", "-c", str(config), "--debug", "kafka", "--debug", "hub")
    assert result.exit_code == 0
    ((settings,), options), = serve  # fmt: skip
    assert settings == ("settings of", config) == options.pop("load")()
    rest = {"co_hosted_app_factory": create_sidecar, "notes": ()}
    assert options == {"debug": {"kafka", "hub"}, **rest}


@pytest.mark.parametrize(("status", "arguments"), [(0, ["--workers", "3"]), (1, [])])
def test_run_takes_the_number_of_workers_and_gives_back_their_status(
    room, config, status, arguments
):
    config.write_text("kafka: {servers: [a:9092]}\nlisten: {workers: 2}\n")
    served = []

    def serve(settings, **options):
        served.append(settings.listen.workers)
        return status

    room("gateway.web.app.server", serve=serve)
    result = gateway_with("run", "-c", str(config), *arguments)
    assert (result.exit_code, served) == (status, [3 if arguments else 2])


@pytest.mark.parametrize(
    ("arguments", "sections", "said"),
    [
        (["run", "--workers", "2"], "sidecar: {consumer: {}}", "set listen.workers: 1"),
        (
            ["sidecar", "--host", "0.0.0.0"],
            "sidecar: {producer: {}, guarded: {g: []}}\n"
            "guards: {g: {type: inline, credentials: {headers: {authorization: '{credentials}'}}, "
            "users: {u: {token: t}}}}",
            "listen.host lets other machines in",
        ),
    ],
)
def test_an_option_that_does_not_fit_the_file_is_refused_as_if_it_stood_there(
    room, config, arguments, sections, said
):
    config.write_text(f"kafka: {{servers: [a:9092]}}\n{sections}\n")
    command, *options = arguments
    room("gateway.web.app.server", serve=lambda settings, **_: 0)
    assert gateway_with(command, "-c", str(config)).exit_code == 0
    result = gateway_with(command, "-c", str(config), *options)
    assert (result.exit_code, said in result.output) == (78, True), result.output


def test_check_says_ok(config):
    config.write_text("kafka: {servers: [a:9092]}\n")
    result = gateway_with("check", str(config))
    assert (result.exit_code, result.output) == (0, f"{config}: ok\n")


def test_check_warns_of_what_works_but_perhaps_not_as_meant(config):
    config.write_text(
        "kafka:\n  servers: [a:9092]\n  security:\n"
        "    sasl: {mechanism: plain, username: u, password: secret}\n"
    )
    result = gateway_with("check", str(config))
    assert (result.exit_code, result.stdout) == (0, f"{config}: ok\n")
    assert [line.split(";")[0] for line in result.stderr.splitlines()] == [
        f"{config}: warning: kafka.security.sasl: credentials travel unencrypted",
        f"{config}: warning: kafka.security.sasl.password: a secret stands in the file",
    ]


def test_check_refuses_what_run_would_refuse_to_serve(config):
    config.write_text(
        "kafka: {servers: [a:9092], topics: [{name: t, value: {model: avro, catalog: registry}}]}\n"
        "catalogs: {registry0: {type: schema-registry, url: http://a}}\n"
    )
    checked, run = gateway_with("check", str(config)), gateway_with("run", "-c", str(config))
    assert (checked.exit_code, checked.stderr) == (78, run.stderr)
    what = "unknown catalog 'registry'; did you mean 'registry0'?"
    assert f"{config}:1:77: kafka.topics[0].value.catalog: {what}" in run.stderr


def test_check_prints_the_schema(room):
    room("gateway.config", build_json_schema=lambda: {"type": "object"})
    result = gateway_with("check", "--schema")
    assert result.exit_code == 0
    assert result.stdout == '{\n  "type": "object"\n}\n'


def test_check_prints_the_settings_as_they_will_be(config):
    config.write_text("kafka: {servers: [a:9092]}\n")
    result = gateway_with("check", str(config), "--print")
    assert result.exit_code == 0
    assert loads(result.stdout) == loads(config.read_text())
    assert "requestTimeout: 5s" in result.stdout


def test_check_takes_a_file_or_the_schema_not_both(room, config):
    room("gateway.config", load=failing(AssertionError), build_json_schema=failing(AssertionError))
    assert gateway_with("check", str(config), "--schema").exit_code == 2


def test_demo_prints_its_configuration_to_start_from(room):
    room("gateway.web.demo", CONFIG="name: demo\n", run_demo=failing(AssertionError))
    result = gateway_with("demo", "--print-config")
    assert (result.exit_code, result.stdout) == (0, "name: demo\n")


def test_demo_prints_the_origins_of_other_pages():
    origins = ("--origin", "http://localhost:5173/page", "--origin", "HTTPS://Shop.example:443")
    result = gateway_with("demo", *origins, "--print-config")
    access = loads(result.stdout).listen.access_control
    assert access.allow.origins == ("http://localhost:5173", "https://shop.example")


def test_demo_prints_the_address_that_it_was_given():
    """It was left out, unless there was an origin, too."""
    result = gateway_with("demo", "--port", "9000", "--print-config")
    assert loads(result.stdout).listen.port == 9000


def test_demo_refuses_an_origin_that_no_browser_sends():
    assert gateway_with("demo", "--origin", "localhost:5173", "--print-config").exit_code == 2


def test_demo_is_shown_where_it_was_asked_for(room):
    demo = Calls()
    room("gateway.web.demo", CONFIG="", run_demo=demo)
    assert gateway_with("demo", "--port", "0", "--no-browser").exit_code == 0
    asked = {"host": "127.0.0.1", "port": 0, "browser": False, "pages": None, "origins": []}
    assert demo == [((), asked)]


def test_a_busy_port_is_told_with_another(room):
    demo = Calls()
    room("gateway.web.demo", CONFIG="", run_demo=demo)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = gateway_with("demo", "--port", str(port))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"gateway: cannot listen on 127.0.0.1:{port} ")
    assert f"try --port {port + 1}" in result.stderr
    assert not demo


def test_a_broker_is_run_as_asked_or_only_fetched(room, tmp_path):
    run_broker, prefetch = Calls(), Calls()
    room("gateway.kafka.local", run_broker=run_broker, prefetch=prefetch)
    arguments = ["--nodes", "3", "--port", "9092", "--data", str(tmp_path)]
    assert gateway_with("broker", *arguments).exit_code == 0
    assert run_broker == [((3, 9092, tmp_path), {})]
    assert gateway_with("broker", "--prefetch").exit_code == 0
    assert (len(run_broker), len(prefetch)) == (1, 1)


def test_tail_hands_on_what_it_was_told(monkeypatch):
    sessions = []

    async def run(session):
        sessions.append(session)

    monkeypatch.setattr("gateway.cli.tail.run.TailSession.run", run)
    monkeypatch.setenv("GATEWAY_TOKEN", "secret")
    url = "https://host/events/orders?from=live"
    told = ["--from", "-5m", "--until", "9", "-n", "3", "--filter", "key=a", "--fields", "/id"]
    result = gateway_with("tail", url, *told, "-H", "X-A: b: c", "--format", "value", "-q")
    assert result.exit_code == 0, result.output
    (session,) = sessions
    target = session.target
    assert (target.scheme, target.location, target.path) == ("https", "host", "/events/orders")
    query = target.query
    assert (query.start, query.until, query.count) == ("-5m", None, 3)
    assert query.other_parameters == (("filter", "key=a"), ("fields", "/id"))
    assert session.headers == {"X-A": "b: c", "Authorization": "Bearer secret"}
    assert (session.style, session.quiet, session.strict) == ("value", True, False)


@pytest.mark.needs("process")
def test_produce_sends_stdin_and_says_what_a_receiver_compares(embedded):
    embedded.create_topic("t", 3)
    text = b"a\nb\r\n\xff\n"
    server = {"GATEWAY_KAFKA_SERVERS": ",".join(embedded.bootstrap)}
    done = run_process("produce", "t", "-H", "from=test", stdin=text, **server)
    said = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert said.startswith("t: 3 of 3 lines acknowledged, 4 bytes, ")
    assert f"sha256={hashlib.sha256(text).hexdigest()} unordered=" in said


@pytest.mark.needs("process")
def test_produce_sends_a_file_to_the_servers_named(embedded, tmp_path):
    embedded.create_topic("t")
    file = tmp_path / "lines.txt"
    file.write_bytes(b"k:a\nk:")
    servers = ["--servers", ",".join(embedded.bootstrap)]
    done = run_process(
        "produce", "t", "-f", str(file), "--key-separator", ":", "--null-empty", *servers
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"t: 2 of 2 lines acknowledged, 1 bytes, ")


@pytest.mark.needs("process")
def test_produce_that_fails_says_how_many_were_acknowledged(embedded):
    embedded.create_topic("t")
    servers = ["--servers", ",".join(embedded.bootstrap)]
    done = run_process("produce", "t", "--key", "id", *servers, stdin=b'{"id":1}\n{}\n')
    assert done.returncode == 1
    assert done.stdout == b"t: 1 of 2 lines acknowledged\n"
    assert done.stderr.startswith(b"gateway: line 2: nothing at 'id'")
    assert done.stderr.count(b"\n") == 1


def test_produce_takes_servers_and_security_from_a_configuration(room, config):
    class Kafka:
        servers = ("broker:9093",)
        security = "tls"

    class Settings:
        clusters: ClassVar = {"": Kafka}
        find_cluster_names = staticmethod(lambda topics: [""])

    def produce_lines(topic, source, **options):
        raise GatewayError(f"{options['servers']} {options['credentials']}")

    room("gateway.config", load=lambda path: Settings)
    room(
        "gateway.kafka.client.security",
        create_credentials=lambda security, names: lambda: {"by": security},
    )
    room("gateway.kafka.produce.line_producer", produce_lines=produce_lines, LineFormat=LineFormat)
    result = gateway_with("produce", "t", "-c", str(config))
    assert result.stderr == "gateway: ('broker:9093',) {'by': 'tls'}\n"
    Kafka.servers = "embedded"
    result = gateway_with("produce", "t", "-c", str(config))
    assert (result.exit_code, "give --servers" in result.stderr) == (1, True)


@pytest.mark.needs("process")
def test_produce_without_a_broker_names_the_address():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server = f"127.0.0.1:{closed.getsockname()[1]}"
    done = run_process("produce", "t", "--servers", server, stdin=b"x\n")
    assert done.returncode == 1
    assert done.stdout == b""
    said = done.stderr.decode()
    assert server in said and "connection refused" in said and "--servers" in said
    assert done.stderr.count(b"\n") == 1
