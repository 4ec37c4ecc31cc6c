"""The image of deploy/Dockerfile, as far as it can be read."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from gateway.cli import app

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def test_the_dockerfile_copies_what_there_is_and_verifies_the_lock():
    sources = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M)
    assert sources
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name in " ".join(sources).split():
        assert (DEPLOY.parent / name).exists(), name
        assert f"!{name}" in allowed, "not sent to the builder"
    assert "--require-hashes -r requirements.lock" in DOCKERFILE


def test_the_image_is_asked_for_its_health_by_a_command_that_knows_port_and_tls():
    """It asked http://127.0.0.1:8080, so a container with TLS or another port was unhealthy."""
    (command,) = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", DOCKERFILE, re.M)
    program, *arguments = json.loads(command)
    assert program == "gateway"
    assert CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0
