"""`--debug COMPONENT` of the commands that serve."""

from __future__ import annotations

import logging
import re
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import gateway
from gateway.cli import app
from gateway.config.sections.telemetry import Logs
from gateway.telemetry import logs
from gateway.telemetry.logs import COMPONENTS, PIPELINE_COMPONENTS
from gateway.web.app import server

SOURCE = Path(gateway.__file__).parent
# Their processes do not serve: what they say of a command is its output, and not its log.
OTHER_PROCESSES = {"cli", "pipeline"}


def run(command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [command, *arguments], prog_name="gateway")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_text("kafka: {servers: [a:9092]}\nsidecar: {producer: {}}\n")
    return file


def test_every_package_that_logs_is_a_component():
    packages = {
        path.parent.relative_to(SOURCE).parts
        for path in SOURCE.rglob("*.py")
        if "logging.getLogger(__name__)" in path.read_text()
    }
    logging_packages = {parts for parts in packages if parts and parts[0] not in OTHER_PROCESSES}
    expected = logging_packages | {parts[:1] for parts in logging_packages}
    assert sorted(COMPONENTS) == sorted(".".join(parts) for parts in expected)
    of_jobs = {parts for parts in packages if parts and parts[0] == "pipeline"}
    assert sorted(PIPELINE_COMPONENTS) == sorted(".".join(parts) for parts in of_jobs)


@pytest.mark.parametrize("command", ["run", "sidecar"])
def test_help_lists_every_component(command: str):
    listed = re.split(r"[\s,]+", run(command, "--help").output.partition("One of")[2])
    assert {name.rstrip(".") for name in listed} >= set(COMPONENTS)


@pytest.mark.parametrize("command", ["run", "sidecar"])
@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("kafka.fecth", "kafka.fetch"),
        ("fanout", "hub.fanout"),
        ("Sidecar", "sidecar"),
        ("gateway.kafka.fetch", "kafka.fetch"),
    ],
)
def test_an_unknown_component_is_answered_with_the_nearest(command, name, closest, config):
    result = run(command, "-c", str(config), "--debug", "kafka", "--debug", name)
    assert result.exit_code == 2
    assert f"unknown component '{name}'; did you mean '{closest}'?" in result.stderr


def test_a_component_that_resembles_none_is_answered_with_all(config: Path):
    result = run("run", "-c", str(config), "--debug", "x")
    assert (result.exit_code, ", ".join(COMPONENTS) in result.stderr) == (2, True)


@pytest.mark.parametrize("command", ["run", "sidecar"])
def test_what_is_served_logs_these_components_in_detail(command, config, monkeypatch):
    served = []
    monkeypatch.setattr(server, "serve", lambda settings, **options: served.append(options))
    result = run(command, "-c", str(config), "--debug", "kafka.fetch", "--debug", "sidecar")
    assert result.exit_code == 0, result.output
    assert [options["debug"] for options in served] == [{"kafka.fetch", "sidecar"}]


def test_a_component_logs_in_detail_and_its_neighbours_do_not(monkeypatch: pytest.MonkeyPatch):
    stream = StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    try:
        configured = Logs(level="warning", levels={"hub.fanout": "error"})
        server.configure_logging(configured, {"kafka.fetch", "hub"})
        for name in ("kafka.fetch.fetcher", "kafka.client.metadata", "hub.fanout.client"):
            logging.getLogger(f"gateway.{name}").debug("in detail")
        logged = re.findall(r"DEBUG gateway\.(\S+): in detail", stream.getvalue())
        assert logged == ["kafka.fetch.fetcher", "hub.fanout.client"]
    finally:
        logs.set_levels("info", {})
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
