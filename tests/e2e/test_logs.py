"""The log of a gateway: lines to read, or objects; what they are about, and no secrets."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import GATEWAY, GatewayProcess, build_config, running_gateway_process
from support.waiting import WAIT_TIMEOUT_S, wait_until
from support.workers import running_workers

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.needs("process")

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.Sfl-KxwRJSMeKKF2QT4"

kafka = embedded_kafka({"orders": 1}, scope="function")


def objects(gateway: GatewayProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gateway.log.splitlines()]


def config(kafka: EmbeddedKafka, **logs: Any) -> dict[str, Any]:
    return build_config(kafka.bootstrap, ["orders"], telemetry={"logs": logs})


@pytest.mark.smoke
async def test_every_line_is_an_object_that_says_what_it_is_about(kafka: EmbeddedKafka):
    levels = {"web": "debug", "hub": "debug", "kafka": "debug"}
    async with running_gateway_process(config(kafka, format="json", levels=levels)) as gateway:
        url = f"{gateway.base_url}/events/orders?token=s3cret&jwt={JWT}&from=live"
        headers = {"Authorization": f"Bearer {JWT}", "Cookie": "session=s3cret"}
        async with RawClient(url, headers=headers) as client:
            await client.wait_for_events(1)
            kafka.down(1)
            await wait_until(lambda: "FETCH reconnect" in gateway.log, "a reconnect")
            kafka.up(1)
        await wait_until(lambda: "stream ended" in gateway.log, "its end")
        assert await gateway.stop() == 0
        lines = objects(gateway)
        assert "s3cret" not in gateway.log and "eyJ" not in gateway.log
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    asked, ended = (_only(lines, start) for start in ("stream asked", "stream ended"))
    assert asked["route"] == ended["route"] == "/events/orders"
    assert "?token=***&jwt=***&from=live" in asked["message"]
    assert ended["stream"] == 1 and ended["message"] == "stream ended reason=left"
    retried = next(line for line in lines if line["message"].startswith("FETCH reconnect in "))
    assert (retried["topic"], retried["partition"]) == ("orders", 0)
    assert retried["cause"] and "route" not in retried, "of all clients, not of the first"
    ready = next(line for line in lines if line["message"].startswith("partition ready after "))
    assert (ready["topic"], ready["partition"]) == ("orders", 0)


def _only(lines: list[dict[str, Any]], start: str) -> dict[str, Any]:
    (found,) = (line for line in lines if line["message"].startswith(start))
    return found


async def test_the_console_has_the_phrases_that_operators_look_for(kafka: EmbeddedKafka):
    asked = config(kafka, level="warning")
    async with running_gateway_process(asked, arguments=["--debug", "kafka"]) as gateway:
        async with RawClient(f"{gateway.base_url}/events/orders") as client:
            await client.wait_for_events(1)
            kafka.down(1)
            await wait_until(lambda: "FETCH reconnect" in gateway.log, "a reconnect")
            await wait_until(lambda: "Kafka cause=" in gateway.log, "the outage")
            kafka.up(1)
            await wait_until(lambda: "FETCH resumed" in gateway.log, "its end")
        log = gateway.log
    for phrase in (
        r"DEBUG gateway\.\S+\.fetcher: partition ready after [\d.]+s topic=orders partition=0$",
        r"WARNING gateway\.kafka\.client\.outages: Kafka cause=\w+",
        r"FETCH reconnect in [\d.]+s topic=orders partition=0 cause=\w+$",
    ):
        assert re.search(phrase, log, re.M), phrase
    assert "uvicorn" not in log, "said only if it is a warning"


async def test_each_worker_names_itself(kafka: EmbeddedKafka):
    async with running_workers(config(kafka, format="json"), 2) as gateway:
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(gateway.base_url + "/none?token=s3cret")).status_code == 404
        started = [each for each in objects(gateway) if "startup complete" in each["message"]]
        assert sorted(each["worker"] for each in started) == [1, 2]
        assert "s3cret" not in gateway.log


async def test_a_path_forges_no_line(kafka: EmbeddedKafka):
    """With --debug web a path with %0a in it wrote lines of its own, those of operators too, and
    with %1b it moved the cursor of whoever read them."""
    routes = [{"when": [{"path": "/own/{id}"}], "with": {"topic": "orders"}}]
    made = build_config(kafka.bootstrap, ["orders"], routes)
    forged = "2026-11-22 10:00:00,000 INFO gateway.web.admin: admin: revoke"
    async with running_gateway_process(made, arguments=["--debug", "web"]) as gateway:
        async with httpx.AsyncClient(trust_env=False, timeout=WAIT_TIMEOUT_S) as http:
            for odd in ("%0a", "%0d", "%1b[2J", "%e2%80%a8", "%c2%85", "%e2%80%ae"):
                path = f"/own/a{odd}{forged.replace(' ', '%20')}?until=latest"
                assert (await http.get(f"{gateway.base_url}{path}")).status_code == 200
        await wait_until(lambda: gateway.log.count("admin: revoke") >= 6, "it is logged")
        log = gateway.log
    assert not [line for line in log.splitlines() if line.startswith(forged)]
    assert all(char == "\n" or char.isprintable() for char in log)


async def test_every_line_of_two_workers_is_an_object_from_the_first_one_on(kafka: EmbeddedKafka):
    """Warnings about the configuration came before its format was known, as text, and errors that
    end the start were text whatever the format was."""
    given = config(kafka, format="json")
    misspelt = {"GATEWAY_LISTEN__PROT": "1"}
    async with running_workers(given, 2, environment=misspelt) as gateway:
        first = gateway.config_path.read_text()
        gateway.send_signal(signal.SIGHUP)
        await wait_until(
            lambda: gateway.log.count("configuration reloaded") == 2,
            gateway.read_log_tail,
        )
        gateway.config_path.write_text(first.replace('"routes"', '"roots"'))
        gateway.send_signal(signal.SIGHUP)
        await wait_until(
            lambda: "configuration not reloaded" in gateway.log,
            gateway.read_log_tail,
        )
        assert await gateway.stop() == 0
        lines = objects(gateway)
    assert "GATEWAY_LISTEN__PROT" in lines[0]["message"], "said while it was loaded"
    messages = " ".join(line["message"] for line in lines)
    assert "listening on" in messages and "startup complete" in messages
    assert {line.get("worker") for line in lines} == {None, 1, 2}


@pytest.mark.parametrize("asked_by", ["file", "malformed file", "variable", "option"])
def test_an_error_that_ends_the_start_is_an_object(
    kafka: EmbeddedKafka, tmp_path: Path, asked_by: str
):
    logs = {"format": "json"} if "file" in asked_by else {}
    made = {**config(kafka, **logs), "unknown": 1, "alsoUnknown": 2}
    file = tmp_path / "gateway.yaml"
    text = json.dumps(made, indent=1)
    file.write_text(text[:-1] if asked_by == "malformed file" else text)
    option = ["--log-format", "json"] if asked_by == "option" else []
    variable = {"GATEWAY_LOG_FORMAT": "json"} if asked_by == "variable" else {}
    ended = subprocess.run(
        [*GATEWAY, "run", "-c", str(file), *option],
        env={**os.environ, **variable}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 78
    lines = [json.loads(line) for line in (ended.stdout + ended.stderr).splitlines()]
    assert lines and all(line["level"] == "error" for line in lines)
    assert all(str(file) in line["message"] for line in lines)


@pytest.mark.smoke
def test_an_address_that_is_taken_is_an_object(kafka: EmbeddedKafka, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = config(kafka, format="json") | {"listen": {"port": taken.getsockname()[1]}}
        file = tmp_path / "gateway.yaml"
        file.write_text(json.dumps(made))
        ended = subprocess.run(
            [*GATEWAY, "run", "-c", str(file)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    lines = [json.loads(line) for line in (ended.stdout + ended.stderr).splitlines()]
    assert "listen.port" in lines[-1]["message"] and lines[-1]["level"] == "error"
