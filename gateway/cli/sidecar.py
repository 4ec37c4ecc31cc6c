"""`gateway sidecar`: serve the sidecar alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import ConfigError

from .options import (
    ConfigFileOption,
    DebugOption,
    HostOption,
    LogFormatOption,
    PortOption,
    begin_log,
)

if TYPE_CHECKING:
    from gateway.config import Settings


def sidecar(
    config: ConfigFileOption,
    values: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
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

    from .sidecar_factory import create_standalone_sidecar

    options = {
        "listen.host": host,
        "listen.port": port,
        "telemetry.logs.format": None if log_format is None else log_format.value,
    }
    begin_log(log_format, config)

    def load_settings() -> Settings:
        return build_standalone_settings(load(config, values=values, options=options), str(config))

    status = serve(
        load_settings(),
        debug=set(debug or ()),
        load=load_settings,
        co_hosted_app_factory=create_standalone_sidecar,
    )
    if status:
        raise typer.Exit(status)


def build_standalone_settings(settings: Settings, filename: str) -> Settings:
    if settings.sidecar is None:
        what = "there is no section sidecar; add one, such as `sidecar: {producer: {}}`"
        raise ConfigError([f"{filename}:1:1: {what}"])
    return settings.model_copy(update={"routes": ()})
