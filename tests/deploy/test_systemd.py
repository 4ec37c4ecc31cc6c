"""The units of deploy/systemd do what they say."""

from __future__ import annotations

from pathlib import Path

from gateway.cli import EXIT_CONFIG_ERROR
from gateway.config import Listen
from gateway.web.workers.supervisor import Supervisor

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


def read_options(name: str) -> dict[str, list[str]]:
    """The values of every option of a unit."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        option, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(option, []).append(value)
    return found


def test_the_service_knows_a_wrong_configuration_and_waits_for_the_streams_to_end():
    options = read_options("gateway.service")
    assert options["RestartPreventExitStatus"] == [str(EXIT_CONFIG_ERROR)]
    assert int(options["TimeoutStopSec"][0]) > Listen().drain_timeout + Supervisor.KILL_GRACE_S


def test_the_service_is_reloaded_by_the_signal_that_reloads():
    """`systemctl reload` was refused, although SIGHUP makes the gateway read its configuration."""
    check, signal_command = read_options("gateway.service")["ExecReload"]
    assert read_options("gateway.service")["ExecStartPre"] == [check]
    assert signal_command.split()[1:] == ["-HUP", "$MAINPID"]
