"""The sidecar beside the streams: what the layers below it do not know of each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.errors import NotGranted

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.api.gateway import Gateway
    from gateway.config import Settings
    from gateway.sidecar.app import Sidecar
    from gateway.web.access import Granted
    from gateway.web.access.guards import Guards


def sidecar(gateway: Gateway, guards: Guards, *, alone: bool = False) -> Sidecar | None:
    """The sidecar of a gateway that runs; None where none is configured."""
    settings = gateway.settings
    if settings.sidecar is None:
        return None
    from gateway.sidecar.app import Sidecar

    name = settings.sidecar.kafka or next(iter(settings.clusters))
    scope = Scoped(guards, settings)
    hub = gateway.hubs.of(name)
    return Sidecar(settings, hub.cluster, scope=scope, alone=alone, documents=lambda: hub.documents)


def sidecar_alone(gateway: Gateway, guards: Guards) -> Sidecar | None:
    """As `sidecar`, on a port of its own."""
    return sidecar(gateway, guards, alone=True)


GRANTED = "gateway.sidecar.granted"  # in the ASGI scope: guards are asked once for a request


class Scoped:
    """Asks the guards of `sidecar.guarded`: one of them must grant the scope, as a role. They are
    asked once for each request."""

    def __init__(self, guards: Guards, settings: Settings) -> None:
        from gateway.config import Route

        assert settings.sidecar is not None
        self._guards = guards
        self._route = Route.model_validate(
            {
                "when": [{"path": "/sidecar"}],
                "guarded": settings.sidecar.guarded,
                "with": {"topic": "sidecar"},
            }
        )

    async def __call__(
        self, request: Request, scope: str, topics: Sequence[str] = (), group: str | None = None
    ) -> str:
        from gateway.web.access import bearer

        if not self._route.guarded:
            return ""
        granted: Granted | None = request.scope.get(GRANTED)
        if granted is None:
            granted = await self._guards(self._route, {}, request, bearer(request))
            request.scope[GRANTED] = granted
        if scope and not any(scope in grant.roles for grant in granted.values()):
            what = f"no guard grants {scope}; ask for a token with that scope"
            raise NotGranted(403, what, roles=(scope,))
        if len(granted) > 1:  # who it is for the first may be several for the others
            return json.dumps(sorted(granted.subject))
        return granted.identity or ""
