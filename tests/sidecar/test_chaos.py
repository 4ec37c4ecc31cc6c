from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.sidecars import running_sidecar
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.sidecar.admin import ChaosMiddleware, ChaosMonkey
from gateway.sidecar.http.status import StatusError

kafka = embedded_kafka()
LET_LOOSE = {"enabled": True, "bypass": False, "level": 1}


def test_one_of_so_many_requests_is_met_by_chance():
    draws = iter([0.0, 0.19, 0.2, 0.99] * 2)
    monkey = ChaosMonkey(draw=lambda: next(draws))
    monkey.set_assault("exception", {**LET_LOOSE, "level": 5})
    assert [monkey.draw_assault("exception") is not None for _ in range(8)] == [
        True,
        True,
        False,
        False,
    ] * 2
    assert monkey.assault_counts == {"exception": 4}


@pytest.mark.parametrize("values", [{}, {"enabled": True}, {"bypass": False}])
def test_nobody_is_met_until_an_assault_is_enabled_and_not_bypassed(values):
    monkey = ChaosMonkey(draw=lambda: 0.0)
    for name in monkey.assaults:
        monkey.set_assault(name, {"level": 1, **values})
        assert monkey.draw_assault(name) is None


def test_what_an_assault_does_not_have_is_refused_and_changes_nothing():
    monkey = ChaosMonkey()
    for values in ({"latencyRangeStart": 5}, {"latencyRangeStart": 4000}):
        name = "exception" if values["latencyRangeStart"] == 5 else "latency"
        with pytest.raises(StatusError):
            monkey.set_assault(name, values)
    assert monkey.assaults == ChaosMonkey().assaults


async def test_an_exception_and_a_cut_connection_meet_all_but_health_and_adm(kafka):
    async with running_sidecar(kafka.bootstrap, admin={"chaos": True}, audit={"to": "off"}) as http:
        asked = {"url": "/consumers/active/audit", "json": []}
        assert (await http.post(**asked)).status_code == 202
        await http.post("/adm/chaosmonkey/exception", json=LET_LOOSE)
        answer = await http.post(**asked)
        assert (answer.status_code, answer.json()["code"]) == (500, "ASSAULT")
        await http.post("/adm/chaosmonkey/kill-connection", json=LET_LOOSE)
        with pytest.raises(httpx.TransportError):
            await http.post(**asked)
        assert (await http.get("/health/liveness")).status_code == 200
        for name in ("exception", "kill-connection"):
            answer = await http.post(f"/adm/chaosmonkey/{name}", json={"bypass": True})
            assert answer.json()["enabled"] is True
        assert (await http.post(**asked)).status_code == 202


async def measure_delay(monkey: ChaosMonkey) -> float:
    """Return after how many seconds the application is called."""
    called: list[float] = []

    async def app(scope, receive, send):
        called.append(time.monotonic())

    began = time.monotonic()
    await ChaosMiddleware(app, monkey)({"type": "http", "path": "/x"}, None, None)
    return called[0] - began


async def test_latency_is_in_front_of_the_answer():
    monkey = ChaosMonkey()
    monkey.set_assault("latency", {**LET_LOOSE, "latencyRangeStart": 50, "latencyRangeEnd": 80})
    assert 0.045 <= await measure_delay(monkey) <= 2


async def test_requests_that_wait_go_on_when_latency_is_switched_off():
    """They waited on for what was left of up to ten minutes."""
    monkey = ChaosMonkey()
    late = {"latencyRangeStart": 600_000, "latencyRangeEnd": 600_000}
    monkey.set_assault("latency", {**LET_LOOSE, **late})
    waiting = [asyncio.create_task(measure_delay(monkey)) for _ in range(3)]
    await wait_until(lambda: monkey.assault_counts["latency"] == 3)
    monkey.set_assault("exception", {"level": 1})
    await asyncio.sleep(0)
    assert not any(item.done() for item in waiting), "another assault is none of theirs"
    monkey.set_assault("latency", {"enabled": False})
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await asyncio.gather(*waiting)


async def test_under_another_server_the_answer_is_cut():
    async def app(scope, receive, send):
        raise AssertionError("it was asked")

    monkey = ChaosMonkey()
    monkey.set_assault("kill-connection", LET_LOOSE)
    async with (
        running_app(ChaosMiddleware(app, monkey)) as url,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        with pytest.raises(httpx.TransportError):
            await http.get(f"{url}/x")
