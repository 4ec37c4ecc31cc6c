"""The gateway's application in the test's own loop, with the gateway's own edge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from support.app_server import running_app

from gateway.config import loads
from gateway.web.app.app import Application, create_app
from gateway.web.http.transport import GatewayProtocol
from gateway.web.websocket.protocol import WebSocketProtocol


@asynccontextmanager
async def running_in_process_gateway(
    config: Mapping[str, Any], protocol: type[GatewayProtocol] = GatewayProtocol, **options: Any
) -> AsyncIterator[tuple[str, Application]]:
    """Its base URL, and the application. options: of `create_app`."""
    text = StringIO()
    YAML().dump(dict(config), text)
    app = create_app(loads(text.getvalue(), name="test"), **options)
    constants = {
        "CO_HOSTED_APP": app.co_hosted_app,
        "CLIENT_MEMORY": app.gateway.hubs.client_memory,
    }
    http = type("Protocol", (protocol,), constants)
    async with app.lifespan(), running_app(app, http=http, ws=WebSocketProtocol) as url:
        yield url, app
