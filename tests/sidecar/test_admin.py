from __future__ import annotations

import logging
import sys

import httpx
import pytest
from support.brokers import embedded_kafka
from support.gateways import build_config, running_gateway_process
from support.sidecars import running_sidecar, wait_until_ready
from support.waiting import wait_until

from gateway import __version__
from gateway.telemetry import logs

kafka = embedded_kafka()
COMMAND = (sys.executable, "-m", "gateway", "sidecar", "-c")
GUARDS = {
    "users": {
        "type": "inline",
        "credentials": {"headers": {"authorization": "Bearer {credentials}"}},
        "users": {
            "ada": {"token": "of-ada", "password": "s3cret", "roles": ["admin"]},
            "bob": {"token": "of-bob", "roles": ["kafka:w", "kafka:r"]},
        },
    }
}
PATHS = [
    ("GET", "/adm/server/info"),
    ("GET", "/adm/logger"),
    ("POST", "/adm/logger"),
    ("GET", "/adm/chaosmonkey"),
    ("GET", "/adm/chaosmonkey/latency"),
    ("POST", "/adm/chaosmonkey/latency"),
    ("GET", "/adm/groups"),
    ("GET", "/adm/groups/g/lag"),
    ("POST", "/adm/groups/g/offsets"),
    ("DELETE", "/adm/shutdown"),
]


@pytest.fixture
def levels():
    before = logs.get_levels()
    yield
    at_all = before.pop("")
    logs.set_levels(at_all, before)


async def test_the_server_says_what_it_is_and_no_secret(kafka):
    sections = {"admin": {}, "ksqldb": {"username": "me", "password": "s3cret"}}
    async with running_sidecar(kafka.bootstrap, **sections) as http:
        await wait_until_ready(http)
        answer = await http.get("/adm/server/info")
        info = answer.json()
        assert (info["name"], info["version"]) == ("test", __version__)
        assert info["sections"] == ["admin", "health", "ksqldb"]
        assert info["kafka"]["reachable"] is True
        assert info["configuration"]["sidecar"]["ksqldb"]["username"] == "me"
        assert "s3cret" not in answer.text


async def test_levels_of_modules_are_changed_while_it_runs(kafka, levels):
    async with running_sidecar(kafka.bootstrap, admin={}) as http:
        wanted = [
            {"name": "ROOT", "level": "WARN"},
            {"name": "gateway.sidecar.admin", "level": "DEBUG"},
        ]
        answer = await http.post("/adm/logger", json=wanted)
        assert {"name": "ROOT", "level": "WARNING"} in answer.json()
        assert {"name": "sidecar.admin", "level": "DEBUG"} in (await http.get("/adm/logger")).json()
        assert logging.getLogger("gateway.sidecar.admin").isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("gateway.sidecar.health").isEnabledFor(logging.INFO)
        await http.post("/adm/logger", json=[{"name": "kafka", "level": "error"}])
        assert logging.getLogger("gateway.sidecar.admin").isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ([{"name": "ROOT", "level": "DEBUGG"}], "debug"),
        ([{"name": "sidecra", "level": "debug"}], "sidecar"),
        ([{"name": "ROOT"}], "level"),
        ({"name": "ROOT", "level": "debug"}, "array"),
    ],
)
async def test_an_invalid_level_is_an_error_and_changes_nothing(kafka, levels, wanted, hint):
    async with running_sidecar(kafka.bootstrap, admin={}) as http:
        before = (await http.get("/adm/logger")).json()
        answer = await http.post("/adm/logger", json=wanted)
        assert answer.status_code == 400
        assert hint in answer.text
        assert (await http.get("/adm/logger")).json() == before


async def test_the_chaos_monkey_is_locked_up_unless_the_configuration_says_otherwise(kafka):
    async with running_sidecar(kafka.bootstrap, admin={}) as http:
        for method in ("GET", "POST"):
            answer = await http.request(method, "/adm/chaosmonkey/latency", json={"enabled": True})
            assert (answer.status_code, answer.json()["code"]) == (403, "CHAOS_OFF")


async def test_assaults_are_shown_and_set_by_our_names_and_light_4js(kafka):
    async with running_sidecar(kafka.bootstrap, admin={"chaos": True}) as http:
        shown = (await http.get("/adm/chaosmonkey")).json()
        assert shown.keys() == {"latency", "exception", "kill-connection"}
        assert not any(item["enabled"] for item in shown.values())
        name = "com.networknt.chaos.LatencyAssaultHandler"
        await http.post(f"/adm/chaosmonkey/{name}", json={"level": 7, "latencyRangeEnd": 2000})
        answer = await http.get("/adm/chaosmonkey/latency")
        assert answer.json() == shown["latency"] | {"level": 7, "latencyRangeEnd": 2000}
        for wrong in ({"level": 0}, {"level": "1"}, {"levle": 1}, {"latencyRangeStart": 3000}):
            answer = await http.post("/adm/chaosmonkey/latency", json=wrong)
            assert answer.status_code == 400, wrong
        answer = await http.get("/adm/chaosmonkey/latncy")
        assert (answer.status_code, "latency" in answer.text) == (404, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1"},
        {"Host": "evil.example"},
        {"Host": "[::"},
        {"X-Forwarded-For": "10.0.0.1"},
        {"X-Forwarded-Host": "shop.example"},
        {"CF-Connecting-IP": "10.0.0.1"},
        {"X-Envoy-External-Address": "10.0.0.1"},
    ],
)
async def test_without_a_guard_neither_pages_nor_foreign_names_nor_proxies_are_let_in(
    kafka, headers
):
    async with running_sidecar(kafka.bootstrap, admin={"chaos": True}) as http:
        for method, path in PATHS:
            answer = await http.request(method, path, headers=headers, json={})
            assert answer.status_code in (400, 403), (method, path)


async def test_with_a_guard_only_the_scope_admin_is_admitted(kafka):
    async with running_sidecar(
        kafka.bootstrap, guards=GUARDS, guarded={"users": []}, admin={"chaos": True}
    ) as http:
        for token, status in ((None, 401), ("of-bob", 403)):
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            for method, path in PATHS:
                answer = await http.request(method, path, headers=headers, json={})
                assert answer.status_code == status, (token, method, path)
        headers = {"Authorization": "Bearer of-ada"}
        answer = await http.get("/adm/server/info", headers=headers)
        assert answer.status_code == 200
        assert "of-ada" not in answer.text
        await wait_until_ready(http)  # who asks for health is not asked


@pytest.mark.needs("process")
async def test_shutdown_ends_the_sidecar_in_order(kafka):
    config = build_config(kafka.bootstrap, [], [], sidecar={"admin": {}})
    async with running_gateway_process(config, command=COMMAND) as gateway:
        async with httpx.AsyncClient(base_url=gateway.base_url, trust_env=False) as http:
            assert (await http.get("/adm/shutdown")).status_code == 405
            answer = await http.delete("/adm/shutdown")
            assert answer.status_code == 202
        await wait_until(lambda: not gateway.is_alive, "its end", 30)
        assert await gateway.stop() == 0
