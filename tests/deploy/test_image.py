"""The image of deploy/Dockerfile, as far as it can be read."""

from __future__ import annotations

import json
import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

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


def test_a_container_without_a_file_is_asked_for_its_health_as_variables_say(tmp_path, monkeypatch):
    """`run --topic` in a container was unhealthy: the check wanted a configuration file."""
    monkeypatch.chdir(tmp_path)
    with HTTPServer(("127.0.0.1", 0), Alive) as server:
        Thread(target=server.handle_request, daemon=True).start()
        variables = {"GATEWAY_LISTEN__PORT": str(server.server_port), "GATEWAY_CONFIG": ""}
        done = CliRunner().invoke(app, ["health"], env=variables)
    assert done.exit_code == 0, done.output


def test_the_image_names_no_file_that_is_not_there():
    """GATEWAY_CONFIG named a file that only a mount brings, and without it nothing ran."""
    assert "GATEWAY_CONFIG" not in DOCKERFILE
    assert "WORKDIR /etc/gateway\nUSER" in DOCKERFILE


class Alive(BaseHTTPRequestHandler):
    """Answers 200 to everything."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_what_is_linked_is_in_the_image():
    """The link to the driver led to the sources beside which it was made, and nowhere later."""
    imports = [line for line in DOCKERFILE.splitlines() if "from gateway" in line]
    assert imports
    assert all("python -P -c" in line for line in imports)
