"""Create the sidecar: this module joins `sidecar` and `web`, which do not import each other."""

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
    """Create the configured sidecar, which shares the hub's connections to Kafka."""
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
        documents=lambda: hub.document_locks,
        client_memory=gateway.hubs.client_memory,
    )


def create_standalone_sidecar(gateway: Gateway, guards: Guards) -> SidecarApplication | None:
    return create_sidecar(gateway, guards, standalone=True)


GRANTED_SCOPE_KEY = "gateway.sidecar.granted"  # in the ASGI scope: what the guards granted


class ScopeGuard:
    """Checks each request to the sidecar by the guards of `sidecar.guarded`.

    One of them must grant the scope that an endpoint requires, as a role. The guards are called
    once per request, however many scopes are checked.
    """

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
        """Return the identity of a request's sender; empty if the sidecar is not guarded.

        Raises:
            NotGranted: No guard admits the request or grants the scope, whatever the topics.
        """
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
        if len(granted) > 1:  # one identity of one guard may be several of another: name all
            return json.dumps(sorted(granted.subject))
        return granted.identity or ""
