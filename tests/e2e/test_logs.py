"""The log of a gateway: lines to read, or objects; what they are about, and no secrets."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import GatewayProcess, build_config, running_gateway
from support.waiting import wait_until
from support.workers import running_workers

from gateway.kafka.embedded import EmbeddedKafka

WITHIN = 60.0
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.Sfl-KxwRJSMeKKF2QT4"
PRINTED = re.compile(r"listening on |embedded Kafka on |\d+ workers;")

kafka = embedded_kafka({"orders": 1}, scope="function")


def objects(gateway: GatewayProcess) -> list[dict[str, Any]]:
    lines = [line for line in gateway.log.splitlines() if not PRINTED.match(line)]
    return [json.loads(line) for line in lines]


def config(kafka: EmbeddedKafka, **logs: Any) -> dict[str, Any]:
    return build_config(kafka.bootstrap, ["orders"], telemetry={"logs": logs})


async def test_every_line_is_an_object_that_says_what_it_is_about(kafka: EmbeddedKafka):
    levels = {"web": "debug", "hub": "debug", "kafka": "debug"}
    async with running_gateway(config(kafka, format="json", levels=levels)) as gateway:
        url = f"{gateway.base_url}/events/orders?token=s3cret&jwt={JWT}&from=live"
        headers = {"Authorization": f"Bearer {JWT}", "Cookie": "session=s3cret"}
        async with RawClient(url, headers=headers) as client:
            await client.wait_for_events(1, WITHIN)
            kafka.down(1)
            await wait_until(lambda: "FETCH reconnect" in gateway.log, "a reconnect", WITHIN)
            kafka.up(1)
        await wait_until(lambda: "stream ended" in gateway.log, "its end", WITHIN)
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
    async with running_gateway(asked, arguments=["--debug", "kafka"]) as gateway:
        async with RawClient(f"{gateway.base_url}/events/orders") as client:
            await client.wait_for_events(1, WITHIN)
            kafka.down(1)
            await wait_until(lambda: "FETCH reconnect" in gateway.log, "a reconnect", WITHIN)
            await wait_until(lambda: "Kafka cause=" in gateway.log, "the outage", WITHIN)
            kafka.up(1)
            await wait_until(lambda: "FETCH resumed" in gateway.log, "its end", WITHIN)
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
    async with running_gateway(made, arguments=["--debug", "web"]) as gateway:
        async with httpx.AsyncClient(trust_env=False, timeout=WITHIN) as http:
            for odd in ("%0a", "%0d", "%1b[2J", "%e2%80%a8", "%c2%85", "%e2%80%ae"):
                path = f"/own/a{odd}{forged.replace(' ', '%20')}?until=latest"
                assert (await http.get(f"{gateway.base_url}{path}")).status_code == 200
        await wait_until(lambda: gateway.log.count("admin: revoke") >= 6, "it is logged", WITHIN)
        log = gateway.log
    assert not [line for line in log.splitlines() if line.startswith(forged)]
    assert all(char == "\n" or char.isprintable() for char in log)
