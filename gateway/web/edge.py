"""What each port of a process is to uvicorn: HTTP by our protocol, and no words of its own."""

from __future__ import annotations

from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ..config import Settings
from .beside import Neighbour
from .certificate import TlsContext
from .forwarded import Forwarded
from .hosts import HostCheck
from .listening import BACKLOG
from .transport import GatewayProtocol


def edge(
    app: ASGIApp,
    settings: Settings,
    tls: TlsContext | None,
    neighbour: Neighbour | None = None,
    *,
    names: frozenset[str] | None = None,
    **options: Any,
) -> uvicorn.Config:
    """neighbour: what else the application serves. names: by which it may be asked for; any where
    there are none. options: further ones of `uvicorn.Config`."""
    proxies = settings.listen.forwarded
    if proxies is not False:
        app = forwarded = Forwarded(app, proxies)
    if names is not None:
        # Whoever listed the names means them of proxies, too.
        by_proxy = proxies is not False and not settings.listen.hosts
        app = HostCheck(app, names, forwarded.believes if by_proxy else lambda peer: False)
    return uvicorn.Config(
        app,
        http=type("Protocol", (GatewayProtocol,), {"NEIGHBOUR": neighbour}),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        ssl_context_factory=None if tls is None else lambda config, make: tls.context,
        **options,
    )
