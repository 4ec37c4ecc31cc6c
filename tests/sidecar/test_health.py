from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.responses import Response
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.sidecars import running_sidecar, wait_until_ready
from support.tcp_proxy import TcpProxy

kafka = embedded_kafka()


class FakeBackEnd:
    """status: what its /health says; None for nothing, ever. is_endless: of the body."""

    status: int | None = 200
    is_endless = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"] == "/alive"
        if self.status is None:
            await asyncio.Event().wait()
        if self.is_endless:
            await send({"type": "http.response.start", "status": self.status})
            await send({"type": "http.response.body", "body": b"well", "more_body": True})
            await asyncio.Event().wait()
        await Response(status_code=self.status or 0)(scope, receive, send)


async def test_a_sidecar_that_can_serve_says_ok_as_text(kafka):
    async with running_sidecar(kafka.bootstrap) as http:
        await wait_until_ready(http)
        for path in ("/health/liveness", "/health/readiness"):
            answer = await http.get(path)
            assert (answer.status_code, answer.text) == (200, "OK")
            assert answer.headers["content-type"].startswith("text/plain")


@asynccontextmanager
async def running_with_back_end(
    kafka: Any, within: str
) -> AsyncIterator[tuple[Any, FakeBackEnd, str]]:
    back_end = FakeBackEnd()
    async with running_app(back_end) as url:
        health = {"downstreamEnabled": True, "downstreamHost": url, "downstreamPath": "/alive"}
        health |= {"timeout": within, "useJson": True}
        async with running_sidecar(kafka.bootstrap, health=health) as http:
            yield http, back_end, url


async def test_the_back_end_is_asked_where_that_is_wished(kafka):
    async with running_with_back_end(kafka, "60s") as (http, back_end, url):
        await wait_until_ready(http)
        answer = await http.get("/health/readiness")
        assert answer.json() == {"result": "OK", "checks": {"kafka": "OK", "downstream": "OK"}}
        back_end.status = 500
        answer = await http.get("/health/readiness")
        assert answer.status_code == 503
        body = answer.json()
        assert body["checks"] == {"kafka": "OK", "downstream": f"{url}/alive answers 500"}
        assert (body["result"], body["code"]) == ("ERROR", "NOT_READY")
        assert (await http.get("/health/liveness")).json()["result"] == "OK"


async def test_the_body_of_a_back_end_that_is_well_is_not_read(kafka):
    """It was read and decompressed, whatever its size."""
    async with running_with_back_end(kafka, "5s") as (http, back_end, _):
        await wait_until_ready(http)
        back_end.is_endless = True
        assert (await http.get("/health/readiness")).status_code == 200


async def test_a_back_end_that_says_nothing_is_not_waited_for(kafka):
    async with running_with_back_end(kafka, "50ms") as (http, back_end, _):
        back_end.status = None
        answer = await http.get("/health/readiness")
        assert answer.status_code == 503
        assert answer.json()["checks"]["downstream"] == "no answer within 50ms"


async def test_readiness_reports_a_kafka_that_was_never_reached():
    async with TcpProxy() as proxy:
        await proxy.refuse()
        async with running_sidecar(proxy.address) as http:
            answer = await http.get("/health/readiness")
            assert answer.status_code == 503
            assert answer.text.startswith("kafka: ")
            assert (await http.get("/health/liveness")).status_code == 200


async def test_without_health_nothing_is_served_there(kafka):
    async with running_sidecar(kafka.bootstrap, health={"enabled": False}) as http:
        assert (await http.get("/health/readiness")).status_code == 404
