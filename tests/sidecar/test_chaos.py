from __future__ import annotations

import httpx
import pytest
from support.brokers import embedded_kafka
from support.served import served
from support.sidecars import running_sidecar

from gateway.sidecar.chaos import Assaulted, ChaosMonkey
from gateway.sidecar.status import Refusal

kafka = embedded_kafka()
LET_LOOSE = {"enabled": True, "bypass": False, "level": 1}


def test_one_of_so_many_requests_is_met_by_chance():
    draws = iter([0.0, 0.19, 0.2, 0.99] * 2)
    monkey = ChaosMonkey(chance=lambda: next(draws))
    monkey.set("exception", {**LET_LOOSE, "level": 5})
    assert [monkey.meets("exception") is not None for _ in range(8)] == [
        True,
        True,
        False,
        False,
    ] * 2
    assert monkey.met == {"exception": 4}


@pytest.mark.parametrize("values", [{}, {"enabled": True}, {"bypass": False}])
def test_nobody_is_met_until_an_assault_is_enabled_and_not_bypassed(values):
    monkey = ChaosMonkey(chance=lambda: 0.0)
    for name in monkey.assaults:
        monkey.set(name, {"level": 1, **values})
        assert monkey.meets(name) is None


def test_what_an_assault_does_not_have_is_refused_and_changes_nothing():
    monkey = ChaosMonkey()
    for values in ({"latencyRangeStart": 5}, {"latencyRangeStart": 4000}):
        name = "exception" if values["latencyRangeStart"] == 5 else "latency"
        with pytest.raises(Refusal):
            monkey.set(name, values)
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


async def test_latency_is_in_front_of_the_answer(monkeypatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def app(scope, receive, send):
        slept.append(-1.0)

    monkeypatch.setattr("gateway.sidecar.chaos.asyncio.sleep", sleep)
    monkey = ChaosMonkey()
    late = {"latencyRangeStart": 50, "latencyRangeEnd": 80}
    monkey.set("latency", {**LET_LOOSE, **late})
    await Assaulted(app, monkey)({"type": "http", "path": "/x"}, None, None)
    assert 0.05 <= slept[0] <= 0.08
    assert slept[1:] == [-1.0]


async def test_under_another_server_the_answer_is_cut():
    async def app(scope, receive, send):
        raise AssertionError("it was asked")

    monkey = ChaosMonkey()
    monkey.set("kill-connection", LET_LOOSE)
    async with served(Assaulted(app, monkey)) as url, httpx.AsyncClient(trust_env=False) as http:
        with pytest.raises(httpx.TransportError):
            await http.get(f"{url}/x")
