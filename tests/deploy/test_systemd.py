"""The units of deploy/systemd: systemd's tools read them, and the gateway takes their sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from ruamel.yaml import YAML
from support.gateways import GATEWAY, build_config, running_gateway_process
from support.ports import find_free_port
from support.waiting import wait_until

from gateway.cli import EXIT_CONFIG_ERROR
from gateway.config import Listen
from gateway.config.sections.sidecar import Backend
from gateway.web.app.supervisor import Supervisor

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICES = ("gateway.service", "gateway-sidecar.service")
STOP_S = Listen().drain_timeout + Supervisor.KILL_GRACE_S
# As systemd passes sockets: the descriptors begin at 3, and the pid is that of the program.
ACTIVATE = 'export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" "$@" 3<&%d'


def read_options(name: str) -> dict[str, list[str]]:
    """The values of every option of a unit."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        option, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(option, []).append(value)
    return found


@pytest.mark.parametrize(
    ("name", "work"), [("gateway.service", 0.0), ("gateway-sidecar.service", Backend().timeout)]
)
def test_a_service_knows_a_wrong_configuration_and_waits_for_the_streams_to_end(name, work):
    options = read_options(name)
    assert options["RestartPreventExitStatus"] == [str(EXIT_CONFIG_ERROR)]
    assert int(options["TimeoutStopSec"][0]) > STOP_S + work


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_reloaded_by_the_signal_that_reloads(name: str):
    """`systemctl reload` was refused, although SIGHUP makes the gateway read its configuration."""
    check, signal_command = read_options(name)["ExecReload"]
    assert read_options(name)["ExecStartPre"] == [check]
    assert signal_command.split()[1:] == ["-HUP", "$MAINPID"]


@pytest.mark.needs("systemd")
def test_systemd_knows_every_option_and_finds_the_services_well_confined(tmp_path: Path):
    """Its own check reports an option that it does not know, as a warning with status 0."""
    names = [path.name for path in UNITS.iterdir()]
    for name in names:
        text = (UNITS / name).read_text().replace("/opt/gateway/.venv/bin/gateway", "/bin/true")
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *(f"./{name}" for name in names)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "gateway" in line]
    assert (done.returncode, ours) == (0, [])
    for name in SERVICES:
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=yes", "--threshold=20", f"./{name}"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_the_sockets_have_the_ports_of_the_configuration_and_their_names():
    """`gateway health` and pages ask the port of the file."""
    assert read_options("gateway.socket")["ListenStream"] == [str(Listen().port)]
    options = read_options("gateway-admin.socket")
    assert options["FileDescriptorName"] == ["admin"]
    assert options["Service"] == ["gateway.service"]


@pytest.mark.needs("systemd")
async def test_systemds_own_program_starts_the_gateway_with_the_first_client(embedded, tmp_path):
    embedded.create_topic("orders", 1)
    config = build_config(embedded.bootstrap, ["orders"], listen={"port": 80})
    with (tmp_path / "gateway.yaml").open("w") as file:
        YAML(typ="safe").dump(config, file)
    port = find_free_port()
    variables = [f"--setenv={name}={os.environ.get(name, '')}" for name in ("PYTHONPATH", "HOME")]
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "systemd-socket-activate", "-l", f"127.0.0.1:{port}", *variables,
            *GATEWAY, "run", "-c", str(tmp_path / "gateway.yaml"), stderr=log, stdout=log,
        )  # fmt: skip
    try:
        await wait_until(
            lambda: "Listening on" in (tmp_path / "log").read_text(),
            lambda: (tmp_path / "log").read_text(),
        )
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            answer = await client.get(f"http://127.0.0.1:{port}/health/live")
        assert answer.status_code == 200
        log_text = (tmp_path / "log").read_text()
        assert f"listening on http://127.0.0.1:{port}, passed by the service manager" in log_text
    finally:
        if process.returncode is None:
            process.terminate()
        assert await process.wait() == 0, (tmp_path / "log").read_text()


@pytest.mark.needs("process")
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_client_that_comes_during_a_restart_waits_and_is_served(
    embedded, tmp_path, workers
):
    """Without the socket it is refused, and an EventSource's page sees an error."""
    embedded.create_topic("orders", 1)
    config = build_config(embedded.bootstrap, ["orders"], listen={"workers": workers})
    with closing(socket.create_server(("127.0.0.1", 0))) as held:
        port = int(held.getsockname()[1])
        command = ("bash", "-c", ACTIVATE % held.fileno(), *GATEWAY, "run", "-c")
        async with (
            running_gateway_process(
                config, command=command, is_forked=False, pass_fds=[held.fileno()]
            ) as gateway,
            httpx.AsyncClient(trust_env=False, timeout=120) as client,
        ):
            assert gateway.port == port
            await gateway.stop()
            request = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/health/live"))
            # The kernel has the connection before anybody accepts it.
            await wait_until(lambda: has_waiting_connection(held), lambda: "no connection")
            await gateway.start()
            assert (await request).status_code == 200


def has_waiting_connection(listening: socket.socket) -> bool:
    """Whether the queue of a listening socket is not empty (tcp_info.tcpi_unacked, Linux)."""
    info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int.from_bytes(info[24:28], sys.byteorder) > 0
