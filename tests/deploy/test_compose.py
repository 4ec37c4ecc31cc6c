"""deploy/compose.yaml: Docker's own program reads it, and its parts fit each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.charts import DEPLOY
from support.doc_commands import parse_gateway_command

from gateway.config import Listen, iter_warnings, loads
from gateway.web.app.supervisor import Supervisor

STOP_S = Listen().drain_timeout + Supervisor.KILL_GRACE_S  # how long a gateway may take to end
# Folders that are beside compose.yaml for their own sake; what is in them has tests of its own.
SHARED = ("prometheus", "grafana")


@pytest.fixture(scope="module")
def services() -> Any:
    """The services as `docker compose config` prints them: merged, and with long forms."""
    command = Path(sys.executable).parent / "docker-compose"
    done = subprocess.run(
        [
            command, "-f", DEPLOY / "compose.yaml", "--profile", "*",
            "config", "--format", "json", "--no-interpolate",
        ],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)["services"]


pytestmark = pytest.mark.needs("compose")


def read_yaml(name: str) -> Any:
    return YAML(typ="safe", pure=True).load((DEPLOY / "compose" / name).read_text())


def test_there_is_all_that_a_stream_to_a_page_needs(services: Any):
    assert set(services) == {
        *("kafka", "registry", "gateway", "orders", "jobs", "page", "prometheus", "grafana")
    }


def test_every_image_has_a_version_and_every_port_is_of_this_machine_alone(services: Any):
    for name, service in services.items():
        if "build" in service:
            build = service["build"]
            assert (Path(build["context"]) / build["dockerfile"]).is_file()
        else:
            assert re.search(r":v?\d+\.\d+", service["image"]), name
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", name


def test_every_file_that_is_mounted_exists(services: Any):
    sources = [
        Path(volume["source"])
        for service in services.values()
        for volume in service.get("volumes", [])
        if volume["type"] == "bind"
    ]
    assert len(sources) > 5
    for source in sources:
        assert source.exists() or (source.parent == DEPLOY and source.name in SHARED), source


def test_the_gateway_has_a_configuration_without_warnings_and_time_to_end(services: Any):
    settings = loads((DEPLOY / "compose" / "gateway.yaml").read_text())
    assert list(iter_warnings(settings)) == []
    service = services["gateway"]
    (port,) = service["ports"]
    assert port["target"] == settings.listen.port
    found = re.fullmatch(r"(\d+)s", service["stop_grace_period"])
    assert found is not None and int(found[1]) > STOP_S
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    advertised = services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"PLAINTEXT://{settings.clusters[''].servers[0]}" in advertised.split(",")
    registry = read_yaml("gateway.yaml")["catalogs"]["registry"]["url"]
    assert registry == services["registry"]["environment"]["SCHEMA_REGISTRY_LISTENERS"].replace(
        "0.0.0.0", "registry"
    )


def test_the_orders_are_those_that_the_page_shows(services: Any, tmp_path: Path):
    """Its script is run by the same shell, without a pause, as far as the first lines."""
    (script,) = services["orders"]["command"]
    script = script.replace("$$", "$")
    lines, _, command = script.partition("done | gateway ")
    parse_gateway_command(command.split(), tmp_path)
    lines = lines.replace("while sleep 1; do", "while [ $n -lt 3 ]; do")
    done = subprocess.run(["sh", "-c", f"{lines}done"], capture_output=True, text=True, timeout=30)
    page = (DEPLOY.parent / "examples" / "page" / "index.html").read_text()
    fields = re.search(r"function add\(\{ (.*?) \}\)", page)
    assert fields is not None
    first, *_ = map(json.loads, done.stdout.splitlines())
    assert set(first) == set(fields[1].split(", "))


def test_prometheus_scrapes_the_gateway_and_grafana_asks_prometheus(services: Any):
    prometheus = read_yaml("prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["gateway:8080"]}]
    mounts = {each["target"] for each in services["prometheus"]["volumes"]}
    (rules,) = prometheus["rule_files"]
    assert {str(Path(rules).parent), "/etc/prometheus/prometheus.yml"} <= mounts
    (source,) = read_yaml("grafana/datasource.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = read_yaml("grafana/dashboards.yaml")["providers"]
    mounted = {each["target"] for each in services["grafana"]["volumes"]}
    assert provider["options"]["path"] in mounted
