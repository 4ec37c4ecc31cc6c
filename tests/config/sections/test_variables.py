"""Environment variables set options, between the file and the command line."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Settings, dumps, list_variables, load, loads
from gateway.config.sections.variables import OLD_NAMES
from gateway.errors import ConfigError

FILE = """\
kafka: {servers: [a:9092], topics: [orders]}
listen: {port: 8080, drainTimeout: 3s}
guards: {web-login: {type: jwt, keys: http://localhost/k}}
routes: [{path: /events/orders, topic: orders}]
"""

SHORTEST_FILE = "kafka: {servers: a:1}\n"


def load_with(text: str = FILE, **environ: str) -> tuple[Settings, list[str]]:
    warnings: list[str] = []
    settings = loads(text, environ=environ, with_variables=True, warn=warnings.append)
    return settings, warnings


def get_option(settings: Any, option: str) -> Any:
    for step in option.split("."):
        settings = settings[step] if isinstance(settings, dict) else getattr(settings, step)
    return settings


@pytest.mark.parametrize(
    ("variable", "value", "option", "expected"),
    [
        ("GATEWAY_LISTEN__PORT", "9000", "listen.port", 9000),
        ("GATEWAY_LISTEN__DRAIN_TIMEOUT", "7s", "listen.drain_timeout", 7.0),
        ("GATEWAY_LISTEN__WEBSOCKET__COMPRESSION", "true", "listen.websocket.compression", True),
        ("GATEWAY_LISTEN__ACCESS_CONTROL__POLICY", "cross-origin",
         "listen.access_control.policy", "cross-origin"),
        ("GATEWAY_LISTEN__ACCESS_CONTROL__ALLOW__ORIGINS", "http://a, http://b",
         "listen.access_control.allow.origins", ("http://a", "http://b")),
        ("GATEWAY_LISTEN__HOST", "::1", "listen.host", "::1"),
        ("GATEWAY_KAFKA__SERVERS", "b:9092, [::1]:9092", "kafka.servers", ("b:9092", "[::1]:9092")),
        ("GATEWAY_KAFKA__RACK", "", "kafka.rack", None),
        ("GATEWAY_GUARDS__WEB_LOGIN__ISSUER", "me", "guards.web-login.issuer", ("me",)),
        ("GATEWAY_ADMIN__PORT", "9902", "admin.port", 9902),
        ("GATEWAY_MEMORY", "2GiB", "memory", 2 * 1024**3),
    ],
)  # fmt: skip
def test_a_variable_overrides_the_file(variable: str, value: str, option: str, expected: object):
    settings, warnings = load_with(**{variable: value})
    assert get_option(settings, option) == expected
    assert warnings == []


def test_lists_of_sections_are_yaml_and_topics_may_be_names():
    settings, _ = load_with(
        "kafka: {servers: a:1}",
        GATEWAY_KAFKA__TOPICS="orders, stock",
        GATEWAY_ROUTES="[{path: /a, topic: orders}, {path: /b, topic: stock}]",
    )
    assert isinstance(settings.kafka.topics, tuple)
    assert [topic.name for topic in settings.kafka.topics] == ["orders", "stock"]
    assert [route.when[0].path for route in settings.routes] == ["/a", "/b"]


def test_a_cluster_of_several_is_named_by_the_variable():
    settings, _ = load_with(
        "kafka: {eu-west: {servers: a:1}, us: {servers: b:1}}",
        GATEWAY_KAFKA__EU_WEST__CLIENT_ID="me",
    )
    assert settings.clusters["eu-west"].client_id == "me"


def test_the_command_line_overrides_variables_which_override_the_file():
    environ = {"GATEWAY_LISTEN__PORT": "9000", "GATEWAY_LISTEN__HOST": "0.0.0.0"}
    settings = loads(
        FILE, environ=environ, with_variables=True, options={"listen.port": 1, "listen.host": None}
    )
    assert (settings.listen.port, settings.listen.host) == (1, "0.0.0.0")
    assert settings.listen.drain_timeout == 3
    assert loads(FILE, environ=environ).listen.port == 8080, "only where variables are asked for"


def test_a_wrong_value_is_reported_by_the_name_of_its_variable_and_not_shown():
    with pytest.raises(ConfigError) as raised:
        load_with(
            GATEWAY_LISTEN__PORT="hunter2", GATEWAY_KAFKA__SERVERS="b", GATEWAY_ROUTES="[{path: 7"
        )
    assert raised.value.problems == (
        "GATEWAY_ROUTES:1:2: what opens here is never closed; add the closing quote or bracket",
    )
    with pytest.raises(ConfigError) as raised:
        load_with(GATEWAY_LISTEN__PORT="hunter2", GATEWAY_ROUTES="[{path: /a, topic: ordres}]")
    port, route = sorted(raised.value.problems)
    assert port.startswith("GATEWAY_LISTEN__PORT: listen.port: '${env.GATEWAY_LISTEN__PORT}'")
    assert route.startswith("GATEWAY_ROUTES: routes[0].topic: unknown topic 'ordres'")


def test_a_secret_of_a_variable_is_printed_as_its_name():
    sasl = "security: {tls: {}, sasl: {mechanism: plain, username: u}}"
    settings, _ = load_with(
        f"kafka: {{servers: a:1, {sasl}}}", GATEWAY_KAFKA__SECURITY__SASL__PASSWORD="hunter2"
    )
    written = dumps(settings)
    assert "hunter2" not in written
    assert "${env.GATEWAY_KAFKA__SECURITY__SASL__PASSWORD}" in written


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("GATEWAY_LISTEN_PORT", "did you mean GATEWAY_LISTEN__PORT?"),
        ("GATEWAY_LISTEN__PROT", "did you mean GATEWAY_LISTEN__PORT?"),
        ("GATEWAY_CONFG", "did you mean GATEWAY_CONFIG?"),
        ("GATEWAY_FROBNICATE__XYZ", "`gateway config --env` lists all"),
        ("GATEWAY_LISTEN", "set its options, such as GATEWAY_LISTEN__HOST"),
        ("GATEWAY_LISTN", "did you mean GATEWAY_LISTEN__HOST?"),
        ("GATEWAY_KAFKA__SECURITY", "set its options, such as GATEWAY_KAFKA__SECURITY__TLS__CA"),
        ("GATEWAY_GUARDS__ISSUER", "did you mean GATEWAY_GUARDS__WEB_LOGIN__ISSUER?"),
        ("GATEWAY_KAFKA_SERVER", "did you mean GATEWAY_KAFKA__SERVERS?"),
        ("GATEWAY_DEPLOYED_BY", None),
        ("GATEWAY_URL", None),
        ("gateway_listen__prot", None),
    ],
)
def test_a_variable_that_sets_nothing_is_reported_with_the_nearest(variable: str, hint: str | None):
    _, warnings = load_with(**{variable: "1"})
    assert [line.rpartition("; ")[2] for line in warnings] == ([hint] if hint else [])


def test_a_variable_of_one_cluster_is_reported_where_the_file_has_several():
    """The hint was the variable itself."""
    clusters = "kafka: {eu: {servers: a:1}, us: {servers: b:1}}"
    for name in ("GATEWAY_KAFKA__SERVERS", "GATEWAY_KAFKA_SERVERS"):
        settings, (warning,) = load_with(clusters, **{name: "c:1"})
        assert settings.clusters["eu"].servers == ("a:1",)
        assert "did you mean GATEWAY_KAFKA__EU__SERVERS?" in warning


def test_the_old_name_of_a_variable_is_read_and_the_present_one_overrides_it():
    """GATEWAY_KAFKA_SERVERS, which the help of commands names, was ignored by `gateway run`."""
    old = {"GATEWAY_KAFKA_SERVERS": "b:1"}
    assert load_with(**old)[0].clusters[""].servers == ("b:1",)
    settings, warnings = load_with(**old, GATEWAY_KAFKA__SERVERS="c:1")
    assert (settings.clusters[""].servers, warnings) == (("c:1",), [])
    with pytest.raises(ConfigError, match=r"GATEWAY_KAFKA_SERVERS: kafka\.servers"):
        load_with(GATEWAY_KAFKA_SERVERS="nowhere")


def load_problems(text: str, options: dict[str, Any] | None = None, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loads(text, name="f", environ=environ, with_variables=True, options=options or {})
    return list(raised.value.problems)


def test_what_a_section_lacks_is_reported_by_the_variable_that_made_the_section():
    """It was reported as a problem of a line of the file, which does not have the section."""
    variable = "GATEWAY_KAFKA__SECURITY__SASL__PASSWORD"
    lines = load_problems(FILE, **{variable: "x"})
    assert lines and all(line.startswith(f"{variable}: ") for line in lines), lines
    in_file = f"{FILE}admin: {{}}\n".replace(
        "servers:", "security: {sasl: {username: u}}, servers:"
    )
    assert any("mechanism" in line for line in load_problems(in_file, **{variable: "x"}))


def test_a_problem_of_the_file_that_a_variable_causes_names_the_variable():
    """Only the line of the file was named, which is right by itself."""
    (line,) = load_problems(FILE, GATEWAY_KAFKA__TOPICS="stock", GATEWAY_LISTEN__PORT="1")
    assert line.startswith("f:4:") and line.endswith("(caused by GATEWAY_KAFKA__TOPICS)")
    (line,) = load_problems(FILE, options={"kafka.topics": ["stock"]})
    assert line.endswith("(caused by the command line)")


def test_a_problem_of_the_file_itself_names_no_variable():
    text = FILE.replace("topic: orders", "topic: ordres").replace("servers: [a:9092], ", "")
    for line in load_problems(text, GATEWAY_KAFKA__SERVERS="a:1", GATEWAY_LISTEN__PORT="1"):
        assert "GATEWAY_" not in line


def test_variables_of_others_are_not_reported():
    """Kubernetes sets variables for a service whose name begins with `gateway`."""
    _, warnings = load_with(
        FILE.replace("port: 8080", "port: '${env.GATEWAY_LISTEN_PORT}'"),
        GATEWAY_LISTEN_PORT="8081",
        GATEWAY_ADMIN_PORT="tcp://10.0.0.1:9901",
        GATEWAY_ADMIN_PORT_9901_TCP="tcp://10.0.0.1:9901",
        GATEWAY_ADMIN_SERVICE_HOST="10.0.0.1",
        GATEWAY_ADMIN_SERVICE_PORT_HTTP="9901",
        GATEWAY_KAFKA_SERVERS="a:1",
    )
    assert warnings == []


def test_variables_of_the_tests_and_benches_are_not_reported():
    root = Path(__file__).parents[3]
    files = [*root.glob("tests/**/*.py"), *root.glob("bench/**/*.py"), root / "Makefile"]
    misspelling = (Path(__file__), root / "tests" / "e2e" / "test_logs.py")
    words = {
        word.strip("\"'=,()[]{}.:;`$")
        for file in files
        if file not in misspelling and "cli" not in file.parts
        for word in file.read_text("utf-8").replace("=", " ").split()
        if word.strip("\"'([{$").startswith("GATEWAY_")
    }
    names = {word: "1" for word in words if word.isupper() and word.isidentifier()}
    assert len(names) > 10
    settings_names = {variable.name for variable in list_variables()} | OLD_NAMES.keys()
    _, warnings = load_with(**{name: "1" for name in names.keys() - settings_names})
    assert warnings == []


def test_every_variable_is_listed_once_with_what_it_is_for():
    variables = list_variables()
    assert len(variables) > 100
    assert not [
        name for name, count in Counter(each.name for each in variables).items() if count > 1
    ]
    assert all(each.description and each.type for each in variables)
    by_name = {each.name: each for each in variables}
    port = by_name["GATEWAY_LISTEN__PORT"]
    assert (port.option, port.type, port.default) == ("listen.port", "number", "8080")
    assert by_name["GATEWAY_LISTEN__DRAIN_TIMEOUT"].type == "duration"
    assert by_name["GATEWAY_KAFKA__TOPICS"].type == "YAML"


NOT_ALONE = ("mutual", "burst", "GATEWAY_SIDECAR__", "PIPELINES", "GATEWAY_ADMIN__", "INFLUX")


@pytest.mark.parametrize(
    "variable",
    [
        each
        for each in list_variables()
        if each.default and each.type != "YAML" and "__TLS__" not in each.name
        and not any(word in each.name for word in NOT_ALONE)
    ],
    ids=lambda each: each.name,
)  # fmt: skip
def test_the_default_of_a_variable_is_a_value_of_it(variable):
    """What the table shows can be set, and changes nothing."""
    settings, warnings = load_with(SHORTEST_FILE, **{variable.name: variable.default})
    assert (settings, warnings) == (load_with(SHORTEST_FILE)[0], [])


def test_load_reads_variables_and_reports_to_the_log(tmp_path, caplog):
    file = tmp_path / "gateway.yaml"
    file.write_text(FILE)
    environ = {**os.environ, "GATEWAY_LISTEN__PORT": "9000", "GATEWAY_LISTEN__PROTT": "1"}
    assert load(file, environ=environ).listen.port == 9000
    assert "did you mean GATEWAY_LISTEN__PORT?" in caplog.text
