from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator
from support.used_names import list_declared_names, list_imports, list_used_names

from gateway.internals import find_missing
from gateway.kafka.client.aiokafka_internals import INTERNALS, check_aiokafka

PUBLIC = {"aiokafka.AIOKafkaProducer", "aiokafka.errors"}
WITHOUT_SEND = """
from aiokafka.conn import AIOKafkaConnection
del AIOKafkaConnection.send
from gateway.cli import main
main()
"""


def test_aiokafka_has_what_the_gateway_checks_at_start():
    assert find_missing(INTERNALS) == []
    check_aiokafka()


def test_all_that_is_imported_from_aiokafka_is_checked_at_start():
    declared = {f"{each.module}.{each.name}" for each in INTERNALS}
    assert list_imports({"aiokafka"}) - PUBLIC == declared


async def test_all_that_is_used_of_connections_is_checked_at_start():
    made = AIOKafkaConnection("127.0.0.1", 1)
    used = list_used_names(["kafka/client/aiokafka_internals"], ["self"])
    used |= list_used_names(["kafka/client/broker_node", "kafka/client/connections"], ["conn"])
    assert {"_requests", "_versions", "send"} <= used
    theirs = {*dir(made)} - {*dir(object)}
    assert (used & theirs) - list_declared_names(INTERNALS, "AIOKafkaConnection") == set()


def test_all_that_is_used_of_the_bearer_login_is_checked_at_start():
    theirs = {*dir(OAuthAuthenticator(sasl_oauth_token_provider=None))} - {*dir(object)}
    used = list_used_names(["kafka/client/aiokafka_internals"], ["self"]) & theirs
    declared = list_declared_names(INTERNALS, "OAuthAuthenticator")
    connection = list_declared_names(INTERNALS, "AIOKafkaConnection")
    assert "_token_sent" in used and used - declared - connection == set()


@pytest.mark.needs("process")
@pytest.mark.parametrize("command", [["run"], ["check", "--cluster"]], ids=["run", "check"])
def test_another_aiokafka_is_one_line_of_error(tmp_path: Path, command: list[str]):
    file = tmp_path / "gateway.yaml"
    file.write_text(
        'kafka: {servers: ["127.0.0.1:1"], topics: [{name: orders}]}\n'
        "routes: [{when: [{path: /orders}], with: {topic: orders}}]\n"
    )
    arguments = [*command, "-c", str(file)] if command == ["run"] else [*command, str(file)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SEND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "AIOKafkaConnection.send(request, expect_response)" in line
    assert "install aiokafka 0." in line
