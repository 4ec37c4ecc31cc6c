"""An error of the gateway itself does not end an EventSource for good."""

from __future__ import annotations

import logging

import httpx
from support.gateways import build_config

from gateway.config import Settings
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.app.app import create_app
from gateway.web.streams.http_stream import HttpStream

EVENT_SOURCE = {"Accept": "text/event-stream", "Sec-Fetch-Mode": "cors"}


async def test_an_event_source_is_told_to_come_back_and_a_program_gets_500(monkeypatch, caplog):
    """Six EventSources gave up at a gateway that failed for a tenth of a second."""

    async def fail(*_: object) -> HttpStream:
        raise ValueError("planted")

    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        route = {"when": [{"path": "/orders"}], "with": {"topic": "orders"}}
        settings = Settings.model_validate(build_config(kafka.bootstrap, ["orders"], [route]))
        app = create_app(settings)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with (
            app.lifespan(),
            httpx.AsyncClient(transport=transport, base_url="http://gateway") as http,
        ):
            monkeypatch.setattr(HttpStream, "open", fail)
            with caplog.at_level(logging.ERROR):
                browser = await http.get("/orders", headers=EVENT_SOURCE)
            program = await http.get("/orders", headers={"Accept": "text/event-stream"})
    assert browser.status_code == 200
    assert browser.headers["content-type"].startswith("text/event-stream")
    assert browser.text.startswith("retry: ")
    assert 'event: end\ndata: {"reason":"error"}' in browser.text
    assert "ValueError: planted" in caplog.text
    assert (program.status_code, program.json()["title"]) == (500, "Internal error")
