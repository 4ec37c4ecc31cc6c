"""gateway.service and Dockerfile of deploy/, as far as they can be read."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from gateway.cli import EXIT_CONFIG_ERROR, app
from gateway.config import Listen
from gateway.web.workers.supervisor import Supervisor

DEPLOY = Path(__file__).parents[1] / "deploy"


def service() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "gateway.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_service_knows_a_wrong_configuration_and_waits_for_the_streams_to_end():
    options = service()
    assert options["RestartPreventExitStatus"] == [str(EXIT_CONFIG_ERROR)]
    assert int(options["TimeoutStopSec"][0]) > Listen().drain_timeout + Supervisor.KILL_GRACE_S


def test_the_service_is_reloaded_by_the_signal_that_reloads():
    """`systemctl reload` was refused, although SIGHUP makes the gateway read its configuration."""
    check, signal_command = service()["ExecReload"]
    assert service()["ExecStartPre"] == [check]
    assert signal_command.split()[1:] == ["-HUP", "$MAINPID"]


def test_the_dockerfile_copies_what_there_is_and_verifies_the_lock():
    text = (DEPLOY / "Dockerfile").read_text()
    sources = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M)
    assert sources
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name in " ".join(sources).split():
        assert (DEPLOY.parent / name).exists(), name
        assert f"!{name}" in allowed, "not sent to the builder"
    assert "--require-hashes -r requirements.lock" in text


def test_the_image_is_asked_for_its_health_by_a_command_that_knows_port_and_tls():
    """It asked http://127.0.0.1:8080, so a container with TLS or another port was unhealthy."""
    text = (DEPLOY / "Dockerfile").read_text()
    (command,) = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", text, re.M)
    program, *arguments = json.loads(command)
    assert program == "gateway"
    assert CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0
