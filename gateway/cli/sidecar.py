"""`gateway sidecar`: serve the sidecar alone.

It also creates the sidecar beside a gateway: `sidecar` and `web` do not import each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import ConfigError, NotGranted

from .options import (
    ConfigFileOption,
    DebugOption,
    HostOption,
    LogFormatOption,
    PortOption,
    begin_log,
    build_file_option,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.api.gateway import Gateway
    from gateway.config import Settings
    from gateway.sidecar.app import SidecarApplication
    from gateway.web.access import Granted
    from gateway.web.access.admission import Guards


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
        from gateway.sidecar.http.requests import EXPIRY_KEY
        from gateway.web.access import get_bearer_token

        if not self._route.guarded:
            return ""
        granted: Granted | None = request.scope.get(GRANTED_SCOPE_KEY)
        if granted is None:
            granted = await self._guards(self._route, {}, request, get_bearer_token(request))
            request.scope[GRANTED_SCOPE_KEY], request.scope[EXPIRY_KEY] = granted, granted.expires
        if scope and not any(scope in grant.roles for grant in granted.values()):
            what = f"no guard grants {scope}; ask for a token with that scope"
            raise NotGranted(403, what, roles=(scope,))
        if len(granted) > 1:  # one identity of one guard may be several of another: name all
            return json.dumps(sorted(granted.subject))
        return granted.identity or ""


def sidecar(
    config: ConfigFileOption,
    values: Annotated[
        Path | None,
        build_file_option(
            "--values",
            help="YAML that overrides options, such as `kafka-producer.keyFormat: json`.",
        ),
    ] = None,
    host: HostOption = None,
    port: PortOption = None,
    log_format: LogFormatOption = None,
    debug: DebugOption = None,
) -> None:
    """Serve Kafka over HTTP to a back end on the same host.

    Serve the section `sidecar` of a configuration, and none of its routes, until SIGTERM or ^C. The
    command line overrides environment variables (see `gateway config --env`), these override
    --values, and --values overrides the file.

    \b
    gateway sidecar -c gateway.yaml                       # on 127.0.0.1:8080
    gateway sidecar -c gateway.yaml --values values.yml
    gateway sidecar -c gateway.yaml --host 0.0.0.0 --port 8443    # with sidecar.guarded
    """
    from gateway.config import load
    from gateway.web.app.server import serve

    options = {
        "listen.host": host,
        "listen.port": port,
        "telemetry.logs.format": None if log_format is None else log_format.value,
    }
    begin_log(log_format, config)

    def load_settings() -> Settings:
        settings = load(config, values=values, options=options)
        if settings.sidecar is None:
            what = "there is no section sidecar; add one, such as `sidecar: {producer: {}}`"
            raise ConfigError([f"{config}:1:1: {what}"])
        return settings.model_copy(update={"routes": ()})

    status = serve(
        load_settings(),
        debug=set(debug or ()),
        load=load_settings,
        co_hosted_app_factory=partial(create_sidecar, standalone=True),
    )
    if status:
        raise typer.Exit(status)
