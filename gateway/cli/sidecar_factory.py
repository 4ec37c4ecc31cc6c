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
    from gateway.sidecar.app import SidecarApplication
    from gateway.web.access import Granted
    from gateway.web.access.guards import Guards


def create_sidecar(
    gateway: Gateway, guards: Guards, *, standalone: bool = False
) -> SidecarApplication | None:
    """The sidecar of a gateway that runs; None where none is configured."""
    settings = gateway.settings
    if settings.sidecar is None:
        return None
    from gateway.sidecar.app import SidecarApplication

    name = settings.sidecar.kafka or next(iter(settings.clusters))
    scope = ScopeGuard(guards, settings)
    hub = gateway.hubs.get_hub(name)
    return SidecarApplication(
        settings,
        hub.cluster,
        authorize=scope,
        standalone=standalone,
        documents=lambda: hub.documents,
    )


def create_standalone_sidecar(gateway: Gateway, guards: Guards) -> SidecarApplication | None:
    """As `sidecar`, on a port of its own."""
    return create_sidecar(gateway, guards, standalone=True)


GRANTED_SCOPE_KEY = (
    "gateway.sidecar.granted"  # in the ASGI scope: guards are asked once for a request
)


class ScopeGuard:
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
        from gateway.web.access import get_bearer_token

        if not self._route.guarded:
            return ""
        granted: Granted | None = request.scope.get(GRANTED_SCOPE_KEY)
        if granted is None:
            granted = await self._guards(self._route, {}, request, get_bearer_token(request))
            request.scope[GRANTED_SCOPE_KEY] = granted
        if scope and not any(scope in grant.roles for grant in granted.values()):
            what = f"no guard grants {scope}; ask for a token with that scope"
            raise NotGranted(403, what, roles=(scope,))
        if len(granted) > 1:  # who it is for the first may be several for the others
            return json.dumps(sorted(granted.subject))
        return granted.identity or ""
