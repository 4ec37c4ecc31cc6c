"""The harness of the gateway's process, proven with a stand-in for the gateway."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from ruamel.yaml import YAML
from support.gateways import build_config, build_route, running_gateway_process
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

# Serves its configuration; ready at the second question; `mood` says how it misbehaves.
STAND_IN = """
import os, pathlib, signal, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ruamel.yaml import YAML

config = pathlib.Path(sys.argv[1])
settings = YAML(typ="safe").load(config)
mood = settings.get("mood", "good")
if mood == "dies":
    sys.exit("orders.yaml:14:7: unknown key")
asked = []

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.path)
        ready = asked.count("/health/ready") > 1 and mood != "unready"
        body = config.read_bytes() if self.path == "/config" else b"brokers: none"
        self.send_response(200 if ready or self.path == "/config" else 503)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

def drain(*_):
    if mood != "deaf":
        os._exit(7)

signal.signal(signal.SIGTERM, drain)
signal.signal(signal.SIGHUP, lambda *_: print("reloaded", flush=True))
server = ThreadingHTTPServer(("127.0.0.1", settings["listen"]["port"]), Handler)
print(f"listening on http://127.0.0.1:{server.server_port}", file=sys.stderr)
server.serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> list[str]:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    return [sys.executable, str(script)]


def config(**more: Any) -> dict[str, Any]:
    return build_config("127.0.0.1:9092", ["orders"], **more)


async def served_config(base_url: str) -> Mapping[str, Any]:
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{base_url}/config")
        return dict(YAML(typ="safe").load(answer.text))


async def test_it_is_ready_on_a_port_of_the_os_and_ended_with_the_block(
    stand_in: list[str],
) -> None:
    async with running_gateway_process(config(), command=stand_in) as gateway:
        assert gateway.port > 0
        told = await served_config(gateway.base_url)
        assert told["kafka"]["servers"] == ["127.0.0.1:9092"]
        assert gateway.memory_bytes > 1_000_000
        assert gateway.open_file_count > 2
        assert gateway.cpu_seconds > 0
        assert "listening on" in gateway.read_log_tail()
    assert not gateway.is_alive


async def test_it_starts_again_on_its_port_after_a_kill_and_a_stop(stand_in: list[str]) -> None:
    async with running_gateway_process(config(), command=stand_in) as gateway:
        url, pid = gateway.base_url, gateway.pid
        await gateway.kill()
        assert not gateway.is_alive
        await gateway.restart()
        assert (gateway.base_url, gateway.pid == pid) == (url, False)
        assert await gateway.stop() == 7
        await gateway.start()
        assert (await served_config(url))["listen"]["port"] == gateway.port


async def test_a_changed_configuration_keeps_the_port(stand_in: list[str]) -> None:
    async with running_gateway_process(config(), command=stand_in) as gateway:
        gateway.write_config(config(guards={"jwt0": {"type": "jwt"}}))
        gateway.send_signal(signal.SIGHUP)
        await wait_until(lambda: "reloaded" in gateway.log, "a reload")
        told = await served_config(gateway.base_url)
        assert told["guards"] == {"jwt0": {"type": "jwt"}}
        assert told["listen"]["port"] == gateway.port


async def test_one_that_dies_says_why(stand_in: list[str]) -> None:
    with pytest.raises(AssertionError, match=r"status 1(.|\n)*unknown key"):
        async with running_gateway_process(config(mood="dies"), command=stand_in):
            pass


async def test_one_that_never_is_ready_says_what_it_waits_for(stand_in: list[str]) -> None:
    unready = running_gateway_process(config(mood="unready"), command=stand_in, ready=False)
    async with unready as gateway:
        with pytest.raises(AssertionError, match="503 brokers: none"):
            await gateway.wait_until_ready(timeout_s=0.2)


async def test_one_that_does_not_stop_is_killed_and_told(stand_in: list[str]) -> None:
    async with running_gateway_process(config(mood="deaf"), command=stand_in) as gateway:
        with pytest.raises(AssertionError, match="not within"):
            await gateway.stop(timeout_s=0.2)
        assert not gateway.is_alive


def test_a_configuration_has_a_plain_and_an_exact_route_for_each_topic() -> None:
    made = build_config(
        ["a:1", "b:2"],
        ["orders", {"name": "host", "defaultOffset": "historical"}],
        kafka={"bootstrap": ["orders"]},
    )
    assert made["kafka"] == {
        "servers": ["a:1", "b:2"],
        "topics": [{"name": "orders"}, {"name": "host", "defaultOffset": "historical"}],
        "bootstrap": ["orders"],
    }
    paths = [each["when"][0]["path"] for each in made["routes"]]
    assert paths == ["/events/orders", "/records/orders", "/events/host", "/records/host"]
    assert made["routes"][1]["with"] == {"topic": "orders", "format": "envelope"}


def test_routes_given_are_the_routes() -> None:
    given = [build_route("orders", "value", heartbeat="1s")]
    assert build_config("a:1", ["orders"], given)["routes"] == given


async def test_yaml_will_do_as_a_configuration(stand_in: list[str]) -> None:
    async with running_gateway_process(
        "listen: {port: 0}\nname: text", command=stand_in
    ) as gateway:
        assert (await served_config(gateway.base_url))["name"] == "text"


async def test_a_fork_ends_as_a_process_does(embedded: EmbeddedKafka) -> None:
    async with running_gateway_process(build_config(embedded.bootstrap, ["orders"])) as gateway:
        first = psutil.Process(gateway.pid)
        assert first.ppid() != os.getpid()
        await gateway.kill()
        assert not first.is_running()
        await gateway.restart()
        assert gateway.pid != first.pid
        assert await gateway.stop() == 0
        assert gateway.log.count("listening on") == 2


async def test_a_fork_that_dies_says_why() -> None:
    with pytest.raises(AssertionError, match=r"status 78(.|\n)*unknown key 'mood'"):
        async with running_gateway_process(config(mood="dies")):
            pass


async def test_a_fork_has_the_environment_that_is_given(embedded: EmbeddedKafka) -> None:
    made = build_config(embedded.bootstrap, ["orders"], name="${env.GATEWAY_TEST_NAME}")
    async with running_gateway_process(
        made, environment={"GATEWAY_TEST_NAME": "of-the-test"}
    ) as gateway:
        assert gateway.is_alive
    assert "GATEWAY_TEST_NAME" not in os.environ
