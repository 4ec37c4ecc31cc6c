"""What each port of a process is to uvicorn: HTTP by our protocol, and no words of its own."""

from __future__ import annotations

from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ..config import Settings
from .beside import Neighbour
from .certificate import TlsContext
from .forwarded import Forwarded
from .listening import BACKLOG
from .transport import GatewayProtocol


def edge(
    app: ASGIApp,
    settings: Settings,
    tls: TlsContext | None,
    neighbour: Neighbour | None = None,
    **options: Any,
) -> uvicorn.Config:
    """neighbour: what else the application serves. options: further ones of `uvicorn.Config`."""
    proxies = settings.listen.forwarded
    return uvicorn.Config(
        app if proxies is False else Forwarded(app, proxies),
        http=type("Protocol", (GatewayProtocol,), {"NEIGHBOUR": neighbour}),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        ssl_context_factory=None if tls is None else lambda config, make: tls.context,
        **options,
    )
